/** A page of the list of runs, by the filters of the address, kept current by events. */
import { api, take, type Schemas } from '../../api/client';
import { Resource } from '../../api/resource.svelte';
import { onEvents } from '../../app/events.svelte';
import { route } from '../../app/router.svelte';
import { queryOf } from './filters';

export type RunSummary = Schemas['RunSummary'];

/** Must be called while a component is created. */
export function runsOfAddress(): Resource<Schemas['RunPage']> {
  // The same filters are the same text, so that another address with them loads nothing.
  const filters = $derived(JSON.stringify(queryOf(route.query, Date.now())));
  const page = new Resource((signal) =>
    take(api.GET('/api/executions', { params: { query: JSON.parse(filters) as never }, signal })),
  );
  onEvents(['run'], page.reload);
  return page;
}
