import './ui/base.css';

import { mount } from 'svelte';

import App from './app/App.svelte';
import { wordsLoaded } from './app/words.svelte';

void wordsLoaded().then(() => mount(App, { target: document.getElementById('app')! }));
