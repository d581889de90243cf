// Uses the official TypeScript client against a server: MODE (auto, legacy) and a URL, or a command for stdio.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const [mode, target, ...args] = process.argv.slice(2);
const client = new Client({ name: 'test', version: '1.0.0' }, { versionNegotiation: { mode } });
const transport = target.startsWith('http')
  ? new StreamableHTTPClientTransport(new URL(target))
  : new StdioClientTransport({ command: target, args });
await client.connect(transport);
const { tools } = await client.listTools();
const found = await client.callTool({ name: 'search_skills', arguments: { query: 'say something loudly' } });
const progress = [];
const ran = await client.callTool(
  { name: 'run_skill', arguments: { name: 'shouter' } },
  { onprogress: ({ message }) => progress.push(message) },
);
const { resources } = await client.listResources();
const read = await client.readResource({ uri: 'skill://guide/SKILL.md' });
const prompt = await client.getPrompt({ name: 'guide', arguments: { name: 'Ada' } });
let skills = null;
if (mode === 'auto') {
  const library = new SkillsClient(client);
  const listing = await library.list();
  skills = listing.skills.map((skill) => skill.frontmatter.name);
  for (const skill of listing.skills) {
    for (const { uri } of skill.resources) await library.read(skill, uri); // throws unless size and digest fit
  }
  await library.readDirectory('skill://guide/references');
}
console.log(
  JSON.stringify({
    tools: tools.map((tool) => tool.name),
    found: found.structuredContent.results[0].name,
    stdout: ran.structuredContent.stdout,
    progress,
    resources: resources.length,
    text: read.contents[0].text,
    prompt: prompt.messages[0].content.text,
    skills,
  }),
);
await client.close();
