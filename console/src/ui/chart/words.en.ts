export default {
  table: 'Table',
  chart: 'Chart',
  csv: 'CSV',
  day: 'Day',
  week: 'Week of',
  tableOf: (title: string) => `${title}: as a table`,
  csvOf: (title: string) => `${title}: save as CSV`,
};
