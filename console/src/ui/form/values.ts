/** Values of forms: paths of the server's errors, and what is sent. */
export type Values = Record<string, unknown>;

export interface FieldError {
  /** As the server writes it: `rows.0.name`. Empty for the whole input. */
  path: string;
  message: string;
}

/** The errors of the fields in an error of the server. */
export function fieldErrors(details: Record<string, unknown>): FieldError[] {
  const inner = typeof details.details === 'object' && details.details !== null ? details.details : details;
  const errors: unknown = (inner as Record<string, unknown>).errors;
  if (!Array.isArray(errors)) return [];
  return errors.flatMap((error: unknown): FieldError[] => {
    if (typeof error !== 'object' || error === null) return [];
    const { path, message } = error as Record<string, unknown>;
    return typeof path === 'string' && typeof message === 'string' ? [{ path, message }] : [];
  });
}

/** The parts of a path. A name may have dots in it, so the value and the schema decide where a part ends. */
export function pathOf(path: string, value: unknown, schema: unknown): (string | number)[] {
  const parts: (string | number)[] = [];
  let words = path === '' ? [] : path.split('.');
  let inside: unknown = value;
  let described: unknown = schema;
  while (words.length > 0) {
    const properties = field(described, 'properties');
    let length = words.length;
    while (length > 1) {
      const name = words.slice(0, length).join('.');
      if (has(inside, name) || has(properties, name)) break;
      length -= 1;
    }
    const name = words.slice(0, length).join('.');
    words = words.slice(length);
    const isIndex = Array.isArray(inside) && /^\d+$/.test(name);
    parts.push(isIndex ? Number(name) : name);
    inside = has(inside, name) ? (inside as Values)[name] : undefined;
    described = isIndex ? field(described, 'items') : field(properties, name);
  }
  return parts;
}

function has(value: unknown, name: string): boolean {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, name);
}

function field(value: unknown, name: string): unknown {
  return has(value, name) ? (value as Values)[name] : undefined;
}

export function isObject(value: unknown): value is Values {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const MAX_PROPERTIES = 200;
const MAX_CHARACTERS = 100_000;

/** Whether a schema is drawn as fields: an object, and not so large that the page would be slow. */
export function canBeDrawn(schema: unknown): boolean {
  if (!isObject(schema)) return false;
  const text = JSON.stringify(schema);
  if (text.length > MAX_CHARACTERS || text.split('"properties"').length > MAX_PROPERTIES) return false;
  const { type, properties } = schema;
  if (type !== undefined && type !== 'object') return false;
  return isObject(properties) && Object.keys(properties).length <= MAX_PROPERTIES;
}

/** What is sent: without fields that were left empty. */
export function cleaned(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => cleaned(item) ?? null);
  if (!isObject(value)) return value;
  const fields: Values = {};
  for (const [name, inner] of Object.entries(value)) {
    const clean = cleaned(inner);
    if (clean !== undefined)
      Object.defineProperty(fields, name, { value: clean, enumerable: true, configurable: true, writable: true });
  }
  return fields;
}
