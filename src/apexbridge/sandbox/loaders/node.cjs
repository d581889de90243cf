// Waits inside the sandbox for a job and becomes it: the script runs as if Node had been started with it.
// The job is one packet on descriptor 3: strings, each ended by a NUL.
'use strict';
{
  const fs = require('fs');
  const Module = require('module');
  const { Writable } = require('stream');
  const JOB = 3;

  // What nearly every script does first costs most the first time: do it now, while there is time.
  void process.stdout;
  void process.stderr;
  const nowhere = new console.Console({ stdout: new Writable({ write: (piece, encoding, done) => done() }) });
  nowhere.log(JSON.stringify({ ready: true }), { ready: [true] });
  require('./nothing.cjs');

  const pieces = [];
  const piece = Buffer.allocUnsafe(65536);
  for (let size; (size = fs.readSync(JOB, piece, 0, piece.length, null)) > 0; ) {
    pieces.push(Buffer.from(piece.subarray(0, size)));
  }
  fs.closeSync(JOB);
  const words = Buffer.concat(pieces).toString('utf8').split('\0');
  words.pop();
  if (!words.length) process.reallyExit(0); // nobody needed us

  const script = words[0];
  const count = Number(words[2]);
  const variables = words.slice(3 + count);
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (let at = 0; at < variables.length; at += 2) process.env[variables[at]] = variables[at + 1];
  process.argv.splice(1, process.argv.length, script, ...words.slice(3, 3 + count));
  for (const name of Object.keys(require.cache)) delete require.cache[name];
  Module.runMain(script);
}
