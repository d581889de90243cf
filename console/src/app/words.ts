import en from './words.en';
import { words } from './words.svelte';

export const t = words(en, () => import('./words.zh'));
