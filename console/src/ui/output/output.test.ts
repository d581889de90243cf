import { describe, expect, it } from 'vitest';

import { parse, PLAIN, styleAfter, type Run } from './ansi';
import { CUT_CHARACTERS, Layout, wrap } from './layout';
import { LineRing } from './lines';

const ESC = '\u001b';
const shown = (text: string) => parse(text, PLAIN).runs.map((run) => [run.text, run.classes]);

describe('escape sequences', () => {
  it('become classes', () => {
    expect(shown(`${ESC}[31mred${ESC}[0m plain ${ESC}[1;4;92mx`)).toEqual([
      ['red', 'front-1'],
      [' plain ', ''],
      ['x', 'front-2 bold underline'],
    ]);
  });

  it('that are no colours are dropped', () => {
    expect(
      shown(`a${ESC}[2J${ESC}[10;10Hb${ESC}]0;title\u0007c${ESC}]8;;javascript:alert(1)${ESC}\\d${ESC}cE`),
    ).toEqual([['abcdE', '']]);
  });

  it('that are cut off are dropped', () => {
    expect(shown(`a${ESC}[31`)).toEqual([['a', '']]);
    expect(shown(`a${ESC}`)).toEqual([['a', '']]);
  });

  it('of 256 and of all colours become the nearest of eight', () => {
    expect(shown(`${ESC}[38;5;196mr${ESC}[38;2;0;200;0mg${ESC}[38;5;240mgrey`)).toEqual([
      ['r', 'front-1'],
      ['g', 'front-2'],
      ['grey', ''],
    ]);
  });

  it('with absurd parameters do no harm', () => {
    expect(shown(`${ESC}[${'1;'.repeat(100_000)}mtext`)[0]![0]).toBe('text');
    expect(shown(`${ESC}[99999999999999999mtext`)).toEqual([['text', '']]);
  });

  it('keep their style over the end of a line', () => {
    expect(styleAfter(`${ESC}[33mwarn`, PLAIN).front).toBe(3);
  });
});

it('makes control and direction characters visible', () => {
  expect(shown('a\u0000b\u202ec')).toEqual([['a␀b‹U+202E›c', '']]);
});

describe('lines', () => {
  it('of both streams stay whole and in the order of their start', () => {
    const ring = new LineRing();
    ring.add('stdout', 'half');
    ring.add('stderr', 'warning\n');
    ring.add('stdout', ' done\nnext');
    expect(ring.lines.map((line) => [line.stream, line.text])).toEqual([
      ['stdout', 'half done'],
      ['stderr', 'warning'],
      ['stdout', 'next'],
    ]);
  });

  it('are the same however the text was cut', () => {
    const text = `one\r\ntwo\n\n${ESC}[31mthree\nfour 中文 😀\nlast`;
    const whole = new LineRing();
    whole.add('stdout', text);
    const pieces = new LineRing();
    for (const unit of text.split('')) pieces.add('stdout', unit);
    expect(pieces.lines).toEqual(whole.lines);
    expect(whole.lines.map((line) => line.text)).toEqual(['one', 'two', '', `${ESC}[31mthree`, 'four 中文 😀', 'last']);
    expect(whole.lines[4]!.style.front).toBe(1);
  });

  it('that are written over show their last text', () => {
    const ring = new LineRing();
    for (let percent = 0; percent <= 100; percent += 1) ring.add('stderr', `\r${percent} %`);
    expect(ring.lines.map((line) => line.text)).toEqual(['100 %']);
    expect(ring.characters).toBe(5);
  });

  it('are bounded, and the older ones counted', () => {
    const ring = new LineRing(100);
    for (let part = 0; part < 10; part += 1) ring.add('stdout', 'line\n'.repeat(1000));
    expect(ring.lines.length).toBe(100);
    expect(ring.dropped).toBe(9900);
    expect(ring.lines[0]!.number).toBe(9901);
    expect(ring.characters).toBe(400);
  });

  it('are let go when they are too long together', () => {
    const ring = new LineRing();
    for (let part = 0; part < 40; part += 1) ring.add('stdout', `${'x'.repeat(1_000_000)}\n`);
    expect(ring.lines.length).toBe(16);
    expect(ring.dropped).toBe(24);
  });
});

describe('rows', () => {
  const lineOf = (text: string) => {
    const ring = new LineRing();
    ring.add('stdout', text);
    return ring.lines[0]!;
  };
  const textOf = (runs: Run[]) => runs.map((run) => run.text).join('');
  const rowsOf = (layout: Layout, text: string) => {
    const line = lineOf(text);
    return layout.rows(line, 0, layout.rowsOf(line)).map(textOf);
  };

  it('hold as many characters as there are columns', () => {
    const layout = new Layout();
    layout.columns = { count: 10, wide: 2 };
    expect(rowsOf(layout, '0123456789abc')).toEqual(['0123456789', 'abc']);
    expect(rowsOf(layout, '中文中文中文')).toEqual(['中文中文中', '文']);
    expect(rowsOf(layout, 'a\tb')).toEqual(['a       b']);
    expect(rowsOf(layout, `${ESC}[31m0123456789${ESC}[32mabc`)).toEqual(['0123456789', 'abc']);
    expect(rowsOf(layout, '\n')).toEqual(['']);
  });

  it('are as many as are drawn, whatever the text', () => {
    const layout = new Layout();
    layout.columns = { count: 10, wide: 2 };
    const texts = [
      `${ESC}[31mred${ESC}[0m\tand ${ESC}[1;4mbold${ESC}[m 中文中文 é`,
      `${ESC}]0;title\u0007shown${ESC}[2K${ESC}[`,
      'a\u0000b\u202ec\u200b'.repeat(9),
      `${ESC}[38;5;200m${'x\t'.repeat(7)}😀`,
    ];
    for (const text of texts) {
      const rows = rowsOf(layout, text);
      expect(rows.join('')).toBe(layout.rows(lineOf(text), 0, 1000).map(textOf).join(''));
      for (const row of rows.slice(0, -1)) expect(wrap(row, layout.columns)).toEqual([0]);
      expect(rows.length).toBe(layout.rowsOf(lineOf(text)));
    }
  });

  it('never split a character', () => {
    expect(wrap('😀😀😀', { count: 3, wide: 2 })).toEqual([0, 2, 4]);
    expect(wrap('e\u0301'.repeat(3), { count: 2, wide: 2 })).toEqual([0, 4]);
    expect(wrap('中', { count: 1, wide: 2 })).toEqual([0]);
  });

  it('of a long line are cut until all of it is asked for', () => {
    const layout = new Layout();
    layout.columns = { count: 100, wide: 2 };
    const line = lineOf('x'.repeat(1_000_000));
    expect(layout.isCut(line)).toBe(true);
    expect(layout.rowsOf(line)).toBe(CUT_CHARACTERS / 100 + 1);
    layout.showWhole(line);
    expect(layout.rowsOf(line)).toBe(10_000);
    expect(layout.rows(line, 9_999, 10_000)[0]![0]!.text).toHaveLength(100);
  });
});
