/** The words of the page in English and Chinese. English is in the code; Chinese is loaded when it is chosen. */
const STORED_AS = 'apexbridge.language';

export type Language = 'en' | 'zh';
type Texts = Record<string, unknown>;

function preferred(): Language {
  const stored = globalThis.localStorage?.getItem(STORED_AS); // unit tests have none
  if (stored === 'en' || stored === 'zh') return stored;
  return navigator.languages
    .find((name) => /^(en|zh)\b/i.test(name))
    ?.toLowerCase()
    .startsWith('zh')
    ? 'zh'
    : 'en';
}

class CurrentLanguage {
  current = $state<Language>(preferred());

  /** For `Intl` and the `lang` attribute. */
  get locale(): string {
    return this.current === 'zh' ? 'zh-CN' : 'en';
  }

  async choose(language: Language): Promise<void> {
    if (language === 'zh') await Promise.all(tables.map((table) => table.load()));
    this.current = language;
    localStorage.setItem(STORED_AS, language);
  }
}

class Table {
  chinese = $state.raw<Texts | undefined>();
  #loading: Promise<void> | undefined;

  constructor(readonly fetch: () => Promise<{ default: Texts }>) {}

  load(): Promise<void> {
    this.#loading ??= this.fetch().then((module) => {
      this.chinese = module.default;
    });
    return this.#loading;
  }
}

const tables: Table[] = [];
export const language = new CurrentLanguage();

/**
 * The words of one part of the page: `const t = words(en, () => import('./words.zh'))`, then `t.title` or `t.count(3)`.
 * The Chinese table has the type of the English one, so a missing word does not compile.
 */
export function words<T extends object>(english: T, chinese: () => Promise<{ default: T }>): T {
  const table = new Table(chinese as () => Promise<{ default: Texts }>);
  tables.push(table);
  if (language.current === 'zh') void table.load();
  return new Proxy(english, {
    get: (texts, name) => {
      const chosen = language.current === 'zh' ? table.chinese : undefined;
      return (chosen ?? (texts as Texts))[name as string];
    },
  });
}

/** Wait until the words of all modules that are loaded so far are there, so that no English flashes up. */
export async function wordsLoaded(): Promise<void> {
  if (language.current === 'zh') await Promise.all(tables.map((table) => table.load()));
}
