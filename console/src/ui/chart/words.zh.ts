import type en from './words.en';

const zh: typeof en = {
  table: '表格',
  chart: '图表',
  csv: 'CSV',
  day: '日期',
  week: '周起始日',
  tableOf: (title) => `${title}：以表格显示`,
  csvOf: (title) => `${title}：保存为 CSV`,
};
export default zh;
