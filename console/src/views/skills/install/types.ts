/** What the server says about a package that is to be installed. */
import type { Schemas } from '../../../api/client';

export type InstallReceipt = Schemas['InstallReceipt'];

export type PackageReport = Schemas['PackageSkill'];
/** The answer of `POST /api/skills/validate`. By its `upload` exactly this content can be installed. */
export type CheckReport = Schemas['ValidationReport'];

export interface Progress {
  phase: 'downloading' | 'unpacking' | 'checking' | 'installing' | 'indexing';
  bytes: number | null;
  total: number | null;
}
