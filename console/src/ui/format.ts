/** Numbers, sizes and times in the language of the page. */
import { language } from '../app/words.svelte';

const formats = new Map<string, Intl.NumberFormat | Intl.DateTimeFormat | Intl.RelativeTimeFormat>();

function cached<T extends Intl.NumberFormat | Intl.DateTimeFormat | Intl.RelativeTimeFormat>(
  name: string,
  make: (locale: string) => T,
): T {
  const key = `${language.locale} ${name}`;
  let format = formats.get(key) as T | undefined;
  if (format === undefined) formats.set(key, (format = make(language.locale)));
  return format;
}

export function number(value: number): string {
  return cached('number', (locale) => new Intl.NumberFormat(locale)).format(value);
}

/** A share between 0 and 1 as a percentage. */
export function percent(share: number): string {
  const digits = share > 0.995 && share < 1 ? 1 : 0;
  return cached(
    `percent ${digits}`,
    (locale) => new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: digits }),
  ).format(share);
}

const BYTE_UNITS = ['B', 'KB', 'MB', 'GB', 'TB'];

export function bytes(value: number): string {
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const text = cached(
    `digits ${digits}`,
    (locale) => new Intl.NumberFormat(locale, { maximumFractionDigits: digits }),
  ).format(size);
  return `${text} ${BYTE_UNITS[unit]}`;
}

const SECOND_DIGITS = { maximumFractionDigits: 1 };

export function duration(milliseconds: number): string {
  if (milliseconds < 1000) return `${number(Math.round(milliseconds))} ms`;
  const [hour, minute, second] = language.current === 'zh' ? ['小时', '分', '秒'] : ['h', 'min', 's'];
  const seconds = milliseconds / 1000;
  if (seconds < 60) {
    return `${cached('seconds', (locale) => new Intl.NumberFormat(locale, SECOND_DIGITS)).format(seconds)} ${second}`;
  }
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} ${minute} ${Math.floor(seconds % 60)} ${second}`;
  return `${number(Math.floor(minutes / 60))} ${hour} ${minutes % 60} ${minute}`;
}

export type Moment = string | number | Date;

export function dateTime(moment: Moment): string {
  return cached(
    'dateTime',
    (locale) => new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium' }),
  ).format(new Date(moment));
}

export function date(moment: Moment): string {
  return cached('date', (locale) => new Intl.DateTimeFormat(locale, { dateStyle: 'medium' })).format(new Date(moment));
}

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['year', 31_536_000],
  ['month', 2_592_000],
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
];

/** How long ago a moment is, in words: "5 min ago". */
export function ago(moment: Moment, now: number = Date.now()): string {
  const seconds = (new Date(moment).getTime() - now) / 1000;
  const format = cached('ago', (locale) => new Intl.RelativeTimeFormat(locale, { numeric: 'auto', style: 'short' }));
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size) return format.format(Math.round(seconds / size), unit);
  }
  return format.format(Math.round(seconds), 'second');
}
