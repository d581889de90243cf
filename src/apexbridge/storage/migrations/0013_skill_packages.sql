-- Packages that an operator added to a skill. They outlive an overwrite of the skill, so they are not part of it.
CREATE TABLE skill_packages (
    skill TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    requirement TEXT NOT NULL,
    PRIMARY KEY (skill, kind, name)
) WITHOUT ROWID;
