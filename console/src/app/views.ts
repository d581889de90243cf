/** The views, by the first part of their address. The first one comes with the page, others when they are opened. */
import type { Component } from 'svelte';

import SkillsView from '../views/skills/SkillsView.svelte';
import type { IconName } from '../ui/Icon.svelte';
import { t } from './words';

/** A view gets the parts of its address after the first one. */
export type ViewComponent = Component<{ path: string[] }>;

export interface View {
  load: () => Promise<{ default: ViewComponent }>;
  /** The entry of the navigation that it belongs to. */
  group: string;
}

const VIEWS: Record<string, View> = {
  skills: { load: () => Promise.resolve({ default: SkillsView }), group: 'skills' },
  search: { load: () => import('../views/search/SearchView.svelte'), group: 'search' },
  run: { load: () => import('../views/run/RunView.svelte'), group: 'run' },
  chat: { load: () => import('../views/chat/ChatView.svelte'), group: 'chat' },
  runs: { load: () => import('../views/runs/RunsView.svelte'), group: 'runs' },
  approvals: { load: () => import('../views/runs/ApprovalsView.svelte'), group: 'runs' },
  audit: { load: () => import('../views/runs/AuditView.svelte'), group: 'runs' },
  insights: { load: () => import('../views/insights/InsightsView.svelte'), group: 'insights' },
  system: { load: () => import('../views/system/SystemView.svelte'), group: 'system' },
};

/** The view of an address; undefined for a name that somebody typed, such as `constructor`. */
export function viewOf(name: string): View | undefined {
  return Object.hasOwn(VIEWS, name) ? VIEWS[name] : undefined;
}

export interface Entry {
  name: string;
  icon: IconName;
  label: () => string;
}

export const NAVIGATION: Entry[] = [
  { name: 'skills', icon: 'skills', label: () => t.skills },
  { name: 'search', icon: 'search', label: () => t.search },
  { name: 'run', icon: 'run', label: () => t.run },
  { name: 'chat', icon: 'chat', label: () => t.chat },
  { name: 'runs', icon: 'runs', label: () => t.runs },
  { name: 'insights', icon: 'insights', label: () => t.insights },
  { name: 'system', icon: 'system', label: () => t.system },
];
