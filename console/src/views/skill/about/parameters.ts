/** The fields of a JSON Schema as the rows of a table. */
export interface Parameter {
  name: string;
  type: string;
  isRequired: boolean;
  /** As JSON; undefined if there is none. */
  default: string | undefined;
  description: string;
  level: number;
}

type Schema = Record<string, unknown>;

const MAX_LEVEL = 4;
const MAX_CHOICES = 12;
const MAX_ROWS = 200;

export function parametersOf(schema: Schema | null | undefined): Parameter[] {
  const rows: Parameter[] = [];
  if (schema) add(schema, 1, rows);
  return rows;
}

function add(schema: Schema, level: number, rows: Parameter[]): void {
  const required = Array.isArray(schema.required) ? schema.required : [];
  for (const [name, value] of Object.entries(asSchema(schema.properties))) {
    if (rows.length >= MAX_ROWS) return;
    const field = asSchema(value);
    rows.push({
      name,
      type: typeOf(field),
      isRequired: required.includes(name),
      default: field.default === undefined ? undefined : JSON.stringify(field.default),
      description: typeof field.description === 'string' ? field.description : '',
      level,
    });
    const inner = field.properties ? field : asSchema(field.items);
    if (level < MAX_LEVEL && inner.properties) add(inner, level + 1, rows);
  }
}

/** The type in words, with its choices and limits. */
function typeOf(field: Schema, level = 1): string {
  if (Array.isArray(field.enum)) {
    const choices = field.enum.slice(0, MAX_CHOICES).map((choice) => JSON.stringify(choice));
    return `${choices.join(' | ')}${field.enum.length > MAX_CHOICES ? ' | …' : ''}`;
  }
  if (field.const !== undefined) return JSON.stringify(field.const);
  const variants = [field.anyOf, field.oneOf].find(Array.isArray) as unknown[] | undefined;
  if (variants && level < MAX_LEVEL) {
    return [...new Set(variants.slice(0, MAX_CHOICES).map((variant) => typeOf(asSchema(variant), level + 1)))].join(
      ' | ',
    );
  }
  const types = Array.isArray(field.type) ? field.type.map(String) : typeof field.type === 'string' ? [field.type] : [];
  const text = types
    .map((type) =>
      type === 'array' && level < MAX_LEVEL && field.items ? `${typeOf(asSchema(field.items), level + 1)}[]` : type,
    )
    .join(' | ');
  return `${text || 'any'}${limits(field)}`;
}

function limits(field: Schema): string {
  const [low, high] = [field.minimum, field.maximum];
  if (typeof low === 'number' && typeof high === 'number') return ` ${low}–${high}`;
  if (typeof low === 'number') return ` ≥ ${low}`;
  if (typeof high === 'number') return ` ≤ ${high}`;
  return '';
}

function asSchema(value: unknown): Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Schema) : {};
}
