/** The server's state, shared by the parts of this view. */
import { api, take } from '../../api/client';
import { Resource } from '../../api/resource.svelte';
import { live } from '../../app/live.svelte';

export class Status extends Resource<Awaited<ReturnType<typeof load>>> {
  constructor() {
    super(load);
    $effect(() => live.on(['mcp', 'skills'], this.reload));
  }
}

function load(signal: AbortSignal) {
  return take(api.GET('/api/status', { signal }));
}
