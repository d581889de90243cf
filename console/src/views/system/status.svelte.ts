/** The server's state, shared by the parts of this view. */
import { api, take } from '../../api/client';
import { Resource } from '../../api/resource.svelte';
import { onEvents } from '../../app/events.svelte';

export class Status extends Resource<Awaited<ReturnType<typeof load>>> {
  constructor() {
    super(load);
    onEvents(['mcp', 'skills'], this.reload, 2000);
  }
}

function load(signal: AbortSignal) {
  return take(api.GET('/api/status', { signal }));
}
