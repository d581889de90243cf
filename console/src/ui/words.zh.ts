import type en from './words.en';

const zh: typeof en = {
  close: '关闭',
  cancel: '取消',
  save: '保存',
  tryAgain: '重试',
  copy: '复制',
  copied: '已复制',
  download: '下载',
  undo: '撤销',
  showAll: '全部显示',
  showLess: '收起',
  loading: '正在加载…',
  previous: '上一页',
  next: '下一页',
  pageGone: '列表的这一页已不存在。',
  firstPage: '回到第一页',
  range: (from, to, total) => `第 ${from}–${to} 项，共 ${total} 项`,
  none: '无',
  dismiss: '不再显示',
  diff: '逐行更改',
  diffAdded: '新增：',
  diffRemoved: '删除：',
  showMoreLines: (count) => `继续显示（还有 ${count} 行）`,
};
export default zh;
