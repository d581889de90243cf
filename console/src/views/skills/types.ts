/** Shapes of answers of the server that several parts of this view use. */
import type { Schemas } from '../../api/client';

export type SkillSummary = Schemas['SkillSummary'];
export type BulkAction = Schemas['BulkInput']['action'];
export type BulkResult = Schemas['BulkResult'];
