import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

/** The server that `make console-dev` talks to. */
const server = process.env.APEX_URL ?? 'http://127.0.0.1:8420';

/** Modules that the first view needs. */
const FIRST_VIEW =
  /node_modules\/(svelte|esm-env|clsx|openapi-fetch|eventsource-parser)\/|vite\/preload-helper|rolldown\/runtime|src\/(main\.ts$|api\/|app\/(?!Palette|ShortcutHelp)[\w.]+(?:\?|$)|views\/skills\/[\w.]+(?:\?|$)|ui\/markdown\/CodeBlock|ui\/(?!SchemaForm|FilePreview|Diff|ApprovalCard)[\w.]+(?:\?|$))/;

export default defineConfig({
  base: './', // so that the page works behind any path prefix
  plugins: [svelte()],
  build: {
    outDir: process.env.CONSOLE_OUT ?? '../src/apexbridge/surfaces/console/dist',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0, // the policy of the page allows no data: URLs
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 400,
    rolldownOptions: {
      output: {
        codeSplitting: {
          // Two files for the first view: its code, and its Chinese words. By default there would be ten.
          groups: [
            { name: 'words.zh', test: /src\/(app|ui|views\/skills)\/words\.zh\.ts$/, priority: 2 },
            { name: 'page', test: FIRST_VIEW, includeDependenciesRecursively: false, priority: 1 },
          ],
        },
      },
    },
  },
  server: { proxy: Object.fromEntries(['/api', '/v1', '/healthz'].map((path) => [path, server])) },
});
