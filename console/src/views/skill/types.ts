import type { Schemas } from '../../api/client';

export type Skill = Schemas['SkillDetail'];
export type SkillVersion = Schemas['SkillVersion'];
export type DependencyView = Schemas['DependencyView'];
export type DetectedPackage = Schemas['DetectedPackage'];
export type GrantView = Schemas['GrantView'];
export type RunSummary = Schemas['RunSummary'];
export type RankPreview = Schemas['RankPreview'];
export type PastPreview = Schemas['PastPreview'];
