/** Why there is no answer. */
export default {
  away: 'The server does not answer.',
  closed: 'The server closed the connection.',
};
