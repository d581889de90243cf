// Reads a CSV table and describes each column.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const INPUT_FOLDER = "input";
const DELIMITERS = [",", ";", "\t", "|"];
const MISSING = new Set(["", "na", "n/a", "null", "none", "nan"]);
const BOOLEANS = new Set(["true", "false", "yes", "no", "是", "否"]);
// A leading zero means a postal code or an article number: their mean is meaningless.
const NUMBER = /^[-+]?(?:0|[1-9]\d*)?(?:\.\d+)?(?:e[-+]?\d+)?$/i;
const DATE = /^(\d{4})[-/](\d\d)[-/](\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[-+]\d\d:\d\d)?)?$/;
// If at least this share of a column has one type, report the other values as outliers instead of calling it text.
const MAIN_TYPE_SHARE = 0.9;
const SHOWN_EXAMPLES = 5;
const SHOWN_CHARACTERS = 200;

class InputError extends Error {}

async function main() {
  const input = await readInput();
  const options = readOptions(input);
  const text = readTable(input, options).replace(/^\uFEFF/, "");
  const delimiter = options.delimiter ?? guessDelimiter(text);
  const report = describe(records(text, delimiter), { ...options, delimiter });
  process.stdout.write(JSON.stringify(report, null, 2) + "\n");
}

// ------------------------------------------------------------------------------------------------------ input
async function readInput() {
  let json = process.env.INPUT_JSON;
  if (!json) {
    // Input that is too large for a variable is sent on stdin only.
    const chunks = [];
    for await (const chunk of process.stdin) chunks.push(chunk);
    json = Buffer.concat(chunks).toString("utf8");
  }
  let input;
  try {
    input = JSON.parse(json.trim() || "{}");
  } catch {
    throw new InputError("The input is not valid JSON.");
  }
  if (input === null || typeof input !== "object" || Array.isArray(input)) {
    throw new InputError("The input must be a JSON object.");
  }
  return input;
}

function readOptions({ delimiter, header = true, top = 5, decimal = ".", encoding = "utf-8" }) {
  if (delimiter !== undefined && (typeof delimiter !== "string" || !/^[^"\r\n]$/u.test(delimiter))) {
    throw new InputError('"delimiter" must be one character, and neither a quote nor a line break.');
  }
  if (typeof header !== "boolean") throw new InputError('"header" must be true or false.');
  if (!Number.isInteger(top) || top < 0 || top > 100) {
    throw new InputError('"top" must be a whole number from 0 to 100.');
  }
  if (decimal !== "." && decimal !== ",") throw new InputError('"decimal" must be "." or ",".');
  if (typeof encoding !== "string") throw new InputError('"encoding" must be a name such as "gb18030".');
  return { delimiter, header, top, decimal, encoding };
}

function readTable(input, { encoding }) {
  if (input.csv !== undefined) {
    if (typeof input.csv !== "string") throw new InputError('"csv" must be text.');
    return input.csv;
  }
  const files = fs.existsSync(INPUT_FOLDER) ? fs.readdirSync(INPUT_FOLDER) : [];
  if (files.length === 0) throw new InputError('There is no table: give its text as "csv", or one file.');
  if (files.length > 1) throw new InputError(`One table at a time, please; there are ${files.length} files.`);
  let decoder;
  try {
    decoder = new TextDecoder(encoding, { fatal: true });
  } catch {
    throw new InputError(`The encoding "${encoding}" is not known.`);
  }
  const bytes = fs.readFileSync(path.join(INPUT_FOLDER, files[0]));
  try {
    return decoder.decode(bytes);
  } catch {
    throw new InputError(`${files[0]} is not ${encoding} text; name its "encoding", such as gb18030 or windows-1252.`);
  }
}

// ---------------------------------------------------------------------------------------------------- parsing
function guessDelimiter(text) {
  let best = { delimiter: ",", fields: 0 };
  for (const delimiter of DELIMITERS) {
    let fields = 0;
    try {
      fields = records(text, delimiter).next().value?.fields.length ?? 0;
    } catch (error) {
      // With the wrong delimiter a quote may seem unclosed; with the right one the error is reported again.
      if (!(error instanceof InputError)) throw error;
    }
    if (fields > best.fields) best = { delimiter, fields };
  }
  return best.delimiter;
}

// Yields {line, fields} for each record that is not a blank line; quoted fields may span lines.
function* records(text, delimiter) {
  let position = 0;
  let line = 1;
  while (position < text.length) {
    const fields = [];
    const start = line;
    let more = true;
    while (more) {
      let field = "";
      const opening = skipSpaces(text, position);
      if (text[opening] === '"') {
        const end = closingQuote(text, opening, start);
        field = text.slice(opening + 1, end).replaceAll('""', '"');
        line += countLines(field);
        position = end + 1;
      }
      const end = endOfField(text, position, delimiter);
      field += text.slice(position, end);
      fields.push(field.trim());
      more = text.startsWith(delimiter, end);
      position = more ? end + delimiter.length : end;
    }
    if (text.startsWith("\r\n", position)) position += 2;
    else position += 1;
    line += 1;
    if (fields.length > 1 || fields[0] !== "") yield { line: start, fields };
  }
}

// In `Ann, "Smith, J."` the space before the quote is not part of the field.
function skipSpaces(text, position) {
  while (text[position] === " ") position += 1;
  return position;
}

function closingQuote(text, opening, line) {
  let position = text.indexOf('"', opening + 1);
  while (position !== -1 && text[position + 1] === '"') position = text.indexOf('"', position + 2);
  if (position === -1) throw new InputError(`Line ${line}: a quote is opened and never closed.`);
  return position;
}

function endOfField(text, position, delimiter) {
  while (position < text.length && text[position] !== "\n" && text[position] !== "\r") {
    if (text.startsWith(delimiter, position)) break;
    position += 1;
  }
  return position;
}

function countLines(text) {
  let count = 0;
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}

// ------------------------------------------------------------------------------------------------- describing
function describe(table, { header, top, decimal, delimiter }) {
  const first = table.next().value;
  if (!first) throw new InputError("The CSV is empty.");
  const columns = columnNames(first.fields, header).map((name) => ({ name, missing: 0, counts: new Map() }));
  const seen = new Set();
  const ragged = { count: 0, lines: [] };
  let rows = 0;
  let duplicateRows = 0;

  function add({ line, fields }) {
    rows += 1;
    const key = JSON.stringify(fields);
    if (seen.has(key)) duplicateRows += 1;
    seen.add(key);
    if (fields.length !== columns.length) {
      ragged.count += 1;
      if (ragged.lines.length < SHOWN_EXAMPLES) ragged.lines.push(line);
    }
    columns.forEach((column, index) => {
      const value = fields[index] ?? "";
      if (MISSING.has(value.toLowerCase())) column.missing += 1;
      else column.counts.set(value, (column.counts.get(value) ?? 0) + 1);
    });
  }

  if (!header) add(first);
  for (const record of table) add(record);
  const report = { rows, delimiter, duplicateRows };
  if (ragged.count > 0) report.raggedRows = ragged;
  report.columns = columns.map((column) => summary(column, { top, decimal }));
  return report;
}

function columnNames(fields, header) {
  const used = new Map();
  return fields.map((field, index) => {
    const name = (header && field) || `column ${index + 1}`;
    const times = (used.get(name) ?? 0) + 1;
    used.set(name, times);
    return times === 1 ? name : `${name} (${times})`;
  });
}

function summary({ name, missing, counts }, { top, decimal }) {
  const { type, odd } = mainType(counts, decimal);
  const report = { name, type, missing, distinct: counts.size };
  if (type === "number") Object.assign(report, numberRange(counts, decimal));
  if (type === "date") Object.assign(report, dateRange(counts));
  if (odd) report.oddValues = odd;
  const frequent = [...counts].sort((one, other) => other[1] - one[1]).slice(0, top);
  // If every value occurs once, "top values" would only repeat the first rows.
  if (frequent.length > 0 && frequent[0][1] > 1) {
    report.top = frequent.map(([value, count]) => ({ value: shown(value), count }));
  }
  return report;
}

function mainType(counts, decimal) {
  const total = sum(counts.values());
  if (total === 0) return { type: "empty" };
  const tests = {
    number: (value) => toNumber(value, decimal) !== null,
    date: (value) => toTime(value) !== null,
    boolean: (value) => BOOLEANS.has(value.toLowerCase()),
  };
  for (const [type, fits] of Object.entries(tests)) {
    const others = [...counts].filter(([value]) => !fits(value));
    const count = sum(others.map(([, times]) => times));
    if (total - count < MAIN_TYPE_SHARE * total) continue;
    if (count === 0) return { type };
    return { type, odd: { count, examples: others.slice(0, SHOWN_EXAMPLES).map(([value]) => shown(value)) } };
  }
  return { type: "text" };
}

function numberRange(counts, decimal) {
  const numbers = [...counts]
    .map(([value, count]) => ({ value: toNumber(value, decimal), count }))
    .filter(({ value }) => value !== null)
    .sort((one, other) => one.value - other.value);
  const total = sum(numbers.map(({ count }) => count));
  // Divide before adding, so that a column of huge numbers does not become Infinity.
  const mean = sum(numbers.map(({ value, count }) => value * (count / total)));
  const middle = (at(numbers, Math.floor((total - 1) / 2)) + at(numbers, Math.floor(total / 2))) / 2;
  return { min: numbers[0].value, max: numbers.at(-1).value, mean: tidy(mean), median: tidy(middle) };
}

function dateRange(counts) {
  const dates = [...counts.keys()].filter((value) => toTime(value) !== null);
  dates.sort((one, other) => toTime(one) - toTime(other));
  return { min: dates[0], max: dates.at(-1) };
}

// The value at an index of the whole sorted column, from 0.
function at(numbers, index) {
  let passed = 0;
  for (const { value, count } of numbers) {
    passed += count;
    if (index < passed) return value;
  }
  return undefined;
}

function toNumber(value, decimal) {
  if (decimal === "," && value.includes(".")) return null;
  const written = decimal === "," ? value.replace(",", ".") : value;
  const number = NUMBER.test(written) && /\d/.test(written) ? Number(written) : NaN;
  return Number.isFinite(number) ? number : null;
}

function toTime(value) {
  const match = DATE.exec(value);
  if (!match) return null;
  const [, year, month, day, time = "00:00", zone = "Z"] = match;
  // Date.parse accepts 30 February as 1 March.
  const midnight = Date.parse(`${year}-${month}-${day}T00:00Z`);
  if (Number.isNaN(midnight) || new Date(midnight).getUTCDate() !== Number(day)) return null;
  const moment = Date.parse(`${year}-${month}-${day}T${time}${zone}`);
  return Number.isNaN(moment) ? null : moment;
}

function shown(value) {
  return value.length > SHOWN_CHARACTERS ? `${value.slice(0, SHOWN_CHARACTERS)}…` : value;
}

function sum(numbers) {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}

// Round away floating-point noise: 0.1 + 0.2 should print as 0.3.
function tidy(number) {
  return Number(number.toPrecision(12));
}

main().catch((error) => {
  // Print only the message: a stack trace helps neither users nor models.
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
