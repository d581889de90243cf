import { words } from '../app/words.svelte';
import en from './words.en';

export const t = words(en, () => import('./words.zh'));
