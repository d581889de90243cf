import type en from './words.en';

const zh: typeof en = {
  away: '服务器没有响应。',
  closed: '服务器关闭了连接。',
};
export default zh;
