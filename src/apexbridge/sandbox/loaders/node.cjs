// Waits in a warm cell for a job, then runs its script as if Node had been started with it.
// The job arrives on descriptor 3: strings, each followed by a NUL.
'use strict';
{
  const fs = require('fs');
  const Module = require('module');
  const { Writable } = require('stream');
  const JOB = 3;

  // Do once, while waiting, what is slow the first time and most scripts do: print and load a module.
  void process.stdout;
  void process.stderr;
  const discard = new console.Console({ stdout: new Writable({ write: (chunk, encoding, done) => done() }) });
  discard.log(JSON.stringify({ ready: true }), { ready: [true] });
  require('./empty.cjs');

  const chunks = [];
  const buffer = Buffer.allocUnsafe(65536);
  for (let size; (size = fs.readSync(JOB, buffer, 0, buffer.length, null)) > 0; ) {
    chunks.push(Buffer.from(buffer.subarray(0, size)));
  }
  fs.closeSync(JOB);
  const words = Buffer.concat(chunks).toString('utf8').split('\0');
  words.pop();
  if (!words.length) process.reallyExit(0); // the cell was closed without a job

  const script = words[0];
  const count = Number(words[4]);
  const variables = words.slice(5 + count);
  for (const name of Object.keys(process.env)) delete process.env[name];
  for (let i = 0; i < variables.length; i += 2) process.env[variables[i]] = variables[i + 1];
  process.chdir(process.env.HOME);
  process.argv.splice(1, process.argv.length, script, ...words.slice(5, 5 + count));
  for (const name of Object.keys(require.cache)) delete require.cache[name];

  // When nothing is left to do, exit as `process.exit` does, without taking down the heap first. An error that nobody
  // caught is printed only after this event, and addons may clean up at a normal end.
  process.once('exit', (code) => {
    if (code || Object.keys(require.cache).some((name) => name.endsWith('.node'))) return;
    process.emit('exit', process.exitCode ?? code); // the script's own listeners
    process.reallyExit(process.exitCode ?? code);
  });
  Module.runMain(script);
}
