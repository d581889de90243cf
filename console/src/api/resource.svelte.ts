/** Data of the server that a view shows: loaded when something that it depends on changes, kept while it loads again. */
import { asApiError, isAbort, type ApiError } from './errors';

export class Resource<T> {
  data = $state.raw<T | undefined>();
  error = $state.raw<ApiError | undefined>();
  isLoading = $state(true);
  #version = $state(0);

  /** Must be called while a component is created. Reactive values that `load` reads at once are dependencies. */
  constructor(load: (signal: AbortSignal) => Promise<T>) {
    $effect(() => {
      void this.#version;
      const controller = new AbortController();
      this.isLoading = true;
      load(controller.signal).then(
        (data) => {
          if (controller.signal.aborted) return;
          this.data = data;
          this.error = undefined;
          this.isLoading = false;
        },
        (error: unknown) => {
          if (controller.signal.aborted || isAbort(error)) return;
          this.error = asApiError(error);
          this.isLoading = false;
        },
      );
      return () => controller.abort();
    });
  }

  /** Load again; what is shown stays until the answer is there. */
  reload = (): void => {
    this.#version += 1;
  };
}
