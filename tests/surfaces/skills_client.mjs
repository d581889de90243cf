// Manages skills with the SDK of OpenAI or Anthropic and prints what it got: node skills_client.mjs CLIENT URL KEY
import Anthropic, { toFile as toAnthropicFile } from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";

const [client, url, key] = process.argv.slice(2);
const markdown = (name, description) => Buffer.from(`---\nname: ${name}\ndescription: ${description}\n---\n# How\n`);
const status = async (call) => {
  try {
    await call();
    return 200;
  } catch (error) {
    return error.status;
  }
};
const all = async (pages) => {
  const items = [];
  for await (const item of pages) items.push(item);
  return items;
};

async function withOpenAI() {
  const { skills } = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
  const files = async (name, description) => [
    await toFile(markdown(name, description), `${name}/SKILL.md`),
    await toFile(Buffer.from("a"), `${name}/notes/a.md`),
  ];
  for (let number = 0; number < 5; number++) await skills.create({ files: await files(`skill-${number}`, "x") });
  const names = (await all(skills.list({ limit: 2 }))).map((skill) => skill.name).sort();
  const skill = await skills.create({ files: await files("pdf", "one") });
  await skills.versions.create(skill.id, { files: await files("pdf", "two") });
  await skills.versions.create(skill.id, { files: await files("pdf", "three"), default: true });
  const versions = await all(skills.versions.list(skill.id, { limit: 1 }));
  const updated = await skills.update(skill.id, { default_version: "2" });
  if (updated.default_version !== "2" || updated.description !== "two") throw new Error(JSON.stringify(updated));
  const content = await skills.versions.content.retrieve("1", { skill_id: skill.id });
  await skills.versions.delete("1", { skill_id: skill.id });
  return {
    names,
    versions: versions.map((version) => version.description).sort(),
    content: Buffer.from(await content.arrayBuffer()).toString("hex"),
    missing: await status(() => skills.versions.retrieve("1", { skill_id: skill.id })),
    used: await status(() => skills.versions.delete("2", { skill_id: skill.id })),
    deleted: (await skills.delete(skill.id)).deleted,
  };
}

async function withAnthropic() {
  const sdk = new Anthropic({ baseURL: url, apiKey: key });
  const { skills } = sdk;
  const files = async (name, description) => [
    await toAnthropicFile(markdown(name, description), `${name}/SKILL.md`),
    await toAnthropicFile(Buffer.from("a"), `${name}/notes/a.md`),
  ];
  for (let number = 0; number < 5; number++) await skills.create({ files: await files(`skill-${number}`, "x") });
  const names = (await all(skills.list({ limit: 2 }))).map((skill) => skill.display_name).sort();
  const skill = await skills.create({ files: await files("pdf", "one"), display_name: "PDF" });
  const first = skill.latest_version_id;
  await skills.versions.create(skill.id, { files: await files("pdf", "two") });
  await skills.versions.create(skill.id, { files: await files("pdf", "three") });
  const versions = await all(skills.versions.list(skill.id, { limit: 1 }));
  const content = await sdk.beta.skills.versions.download(first, { skill_id: skill.id });
  await skills.versions.delete(first, { skill_id: skill.id });
  const latest = (await skills.retrieve(skill.id)).latest_version_id;
  return {
    names,
    versions: versions.map((version) => version.description).sort(),
    content: Buffer.from(await content.arrayBuffer()).toString("hex"),
    missing: await status(() => skills.versions.retrieve(first, { skill_id: skill.id })),
    used: await status(() => skills.versions.delete(latest, { skill_id: skill.id })),
    deleted: (await skills.delete(skill.id)).type === "skill_deleted",
  };
}

console.log(JSON.stringify(await (client === "openai" ? withOpenAI() : withAnthropic())));
