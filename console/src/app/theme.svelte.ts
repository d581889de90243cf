/** Light or dark: as the system, unless it was chosen here. */
const STORED_AS = 'apexbridge.theme';

export type Theme = 'system' | 'light' | 'dark';

function stored(): Theme {
  const theme = localStorage.getItem(STORED_AS);
  return theme === 'light' || theme === 'dark' ? theme : 'system';
}

class CurrentTheme {
  chosen = $state<Theme>(stored());
  #system = window.matchMedia('(prefers-color-scheme: dark)');
  #systemIsDark = $state(this.#system.matches);

  constructor() {
    this.#system.addEventListener('change', (event) => (this.#systemIsDark = event.matches));
  }

  get isDark(): boolean {
    return this.chosen === 'system' ? this.#systemIsDark : this.chosen === 'dark';
  }

  choose(theme: Theme): void {
    this.chosen = theme;
    if (theme === 'system') localStorage.removeItem(STORED_AS);
    else localStorage.setItem(STORED_AS, theme);
  }
}

export const theme = new CurrentTheme();
