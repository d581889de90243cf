/** What a JSON Schema says about a value, in words: its type, its limits, its default. */
import { number } from '../format';
import { t } from '../output/words';

export interface SchemaPart {
  type?: string | readonly string[];
  format?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  multipleOf?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minItems?: number;
  maxItems?: number;
  default?: unknown;
}

const LONGEST_DEFAULT = 60;
const LONGEST_PATTERN = 80;

function range(from: number | undefined, to: number | undefined): string | undefined {
  if (from !== undefined && to !== undefined) return from === to ? number(from) : `${number(from)}–${number(to)}`;
  if (from !== undefined) return t.formAtLeast(number(from));
  if (to !== undefined) return t.formAtMost(number(to));
  return undefined;
}

export function limits(schema: SchemaPart): string {
  const parts: string[] = [];
  const type = Array.isArray(schema.type) ? schema.type.join(' | ') : schema.type;
  if (typeof type === 'string' && type !== 'boolean') parts.push(schema.format ? `${type}, ${schema.format}` : type);
  const values = range(schema.minimum ?? schema.exclusiveMinimum, schema.maximum ?? schema.exclusiveMaximum);
  if (values !== undefined) parts.push(values);
  if (schema.multipleOf !== undefined && schema.multipleOf !== 1) parts.push(t.formMultiple(number(schema.multipleOf)));
  const characters = range(schema.minLength, schema.maxLength);
  if (characters !== undefined) parts.push(t.formCharacters(characters));
  const items = range(schema.minItems, schema.maxItems);
  if (items !== undefined) parts.push(t.formItems(items));
  if (typeof schema.pattern === 'string') parts.push(t.formPattern(schema.pattern.slice(0, LONGEST_PATTERN)));
  if (type !== 'boolean' && schema.default !== undefined && schema.default !== null && schema.default !== '') {
    const text = JSON.stringify(schema.default);
    if (text.length <= LONGEST_DEFAULT) parts.push(t.formDefault(text));
  }
  return parts.join(' · ');
}
