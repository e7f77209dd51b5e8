-- What commits changed. Everything lives in the schema `queue_worker_git`, which the migration creates
-- before this file runs. Migrations are additive: version N of the program runs on schema N + 1.

CREATE TABLE queue_worker_git.repositories (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text COLLATE "C" NOT NULL UNIQUE,
    url           text NOT NULL,
    mailmap       bytea,
    created_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN queue_worker_git.repositories.url IS 'where it was had from last';
COMMENT ON COLUMN queue_worker_git.repositories.mailmap IS
    'SHA-256 of the file whose entries are in mailmap_entries';

CREATE TABLE queue_worker_git.profiles (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest     text COLLATE "C" NOT NULL UNIQUE,
    spec       jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE queue_worker_git.profiles IS
    'the rules that pin a result; two results under one profile are comparable';

-- One row per commit and profile: whether it is done, and under which fence it may be written.
CREATE TABLE queue_worker_git.analyses (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repository_id bigint NOT NULL REFERENCES queue_worker_git.repositories ON DELETE CASCADE,
    fence         bigint NOT NULL DEFAULT 0,
    started_at    timestamptz,
    finished_at   timestamptz,
    took_us       bigint,
    profile_id    integer NOT NULL REFERENCES queue_worker_git.profiles ON DELETE CASCADE,
    attempts      integer NOT NULL DEFAULT 0,
    oid           bytea NOT NULL,
    status        text COLLATE "C" NOT NULL
        CHECK (status IN ('queued', 'running', 'released', 'succeeded', 'failed')),
    task_id       text COLLATE "C",
    error_code    text COLLATE "C",
    error_detail  text,
    UNIQUE (repository_id, profile_id, oid),
    CHECK ((status = 'failed') = (error_code IS NOT NULL))
) WITH (fillfactor = 80);
COMMENT ON COLUMN queue_worker_git.analyses.fence IS
    'rises with each claim; a write under an older fence changes nothing';
COMMENT ON COLUMN queue_worker_git.analyses.status IS
    'queued, running, released (cut off, or failed in a way that another attempt may mend), and for '
    'good: succeeded, or failed under error_code';
COMMENT ON COLUMN queue_worker_git.analyses.task_id IS 'the task that has it, or had it last';

-- Who wrote or committed, as the commits say it; the mailmap is applied by the views.
CREATE TABLE queue_worker_git.identities (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repository_id bigint NOT NULL REFERENCES queue_worker_git.repositories ON DELETE CASCADE,
    digest        bytea NOT NULL,
    name          text NOT NULL,
    email         text NOT NULL,
    UNIQUE (repository_id, digest)
);
COMMENT ON COLUMN queue_worker_git.identities.digest IS
    'SHA-256 over the length of the name, the name and the address, since names may be too long for '
    'an index';

CREATE TABLE queue_worker_git.mailmap_entries (
    repository_id bigint NOT NULL REFERENCES queue_worker_git.repositories ON DELETE CASCADE,
    email         text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL DEFAULT '',
    proper_name   text,
    proper_email  text,
    PRIMARY KEY (repository_id, email, name)
);
COMMENT ON TABLE queue_worker_git.mailmap_entries IS
    'gitmailmap(5); email and name in lower case, an empty name stands for any';

CREATE TABLE queue_worker_git.commits (
    id              bigint PRIMARY KEY REFERENCES queue_worker_git.analyses ON DELETE CASCADE,
    repository_id   bigint NOT NULL,
    author_id       bigint NOT NULL REFERENCES queue_worker_git.identities,
    committer_id    bigint NOT NULL REFERENCES queue_worker_git.identities,
    author_epoch    bigint,
    committer_epoch bigint,
    author_at       timestamptz,
    committer_at    timestamptz,
    message_bytes   bigint NOT NULL,
    added           bigint NOT NULL,
    deleted         bigint NOT NULL,
    numstat_added   bigint NOT NULL,
    numstat_deleted bigint NOT NULL,
    code_added      bigint NOT NULL,
    code_deleted    bigint NOT NULL,
    test_added      bigint NOT NULL,
    test_deleted    bigint NOT NULL,
    doc_added       bigint NOT NULL,
    doc_deleted     bigint NOT NULL,
    config_added    bigint NOT NULL,
    config_deleted  bigint NOT NULL,
    profile_id      integer NOT NULL,
    author_zone     integer,
    committer_zone  integer,
    flags           integer NOT NULL,
    files           integer NOT NULL,
    binary_files    integer NOT NULL,
    symlinks        integer NOT NULL,
    gitlinks        integer NOT NULL,
    lfs_pointers    integer NOT NULL,
    renames         integer NOT NULL,
    mode_changes    integer NOT NULL,
    merge_extra     integer,
    has_mergetag    boolean NOT NULL,
    oid             bytea NOT NULL,
    tree            bytea NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    signature       text COLLATE "C" NOT NULL,
    encoding        text,
    subject         text NOT NULL,
    body            text NOT NULL,
    message_raw     bytea,
    author_raw      bytea NOT NULL,
    committer_raw   bytea NOT NULL,
    extra_headers   jsonb
);
CREATE INDEX commits_repository ON queue_worker_git.commits (repository_id, profile_id);
CREATE INDEX commits_author ON queue_worker_git.commits (author_id);
CREATE INDEX commits_committer ON queue_worker_git.commits (committer_id);
COMMENT ON TABLE queue_worker_git.commits IS
    'one row per analysis that succeeded, written together with all that belongs to it';
COMMENT ON COLUMN queue_worker_git.commits.added IS
    'lines of text files against the first parent: no links, no submodules, no LFS pointers';
COMMENT ON COLUMN queue_worker_git.commits.numstat_added IS
    'lines as git show --shortstat sums them';
COMMENT ON COLUMN queue_worker_git.commits.author_at IS
    'NULL where the epoch is beyond the years 1 to 9999';
COMMENT ON COLUMN queue_worker_git.commits.author_zone IS 'minutes east of UTC, also absurd ones';
COMMENT ON COLUMN queue_worker_git.commits.message_raw IS
    'the bytes, where the text does not stand for them exactly';
COMMENT ON COLUMN queue_worker_git.commits.flags IS 'a set of bits, see docs/git.md';

CREATE TABLE queue_worker_git.parents (
    commit_id bigint NOT NULL REFERENCES queue_worker_git.commits ON DELETE CASCADE,
    ord       integer NOT NULL,
    oid       bytea NOT NULL,
    PRIMARY KEY (commit_id, ord)
);

CREATE TABLE queue_worker_git.file_changes (
    commit_id  bigint NOT NULL REFERENCES queue_worker_git.commits ON DELETE CASCADE,
    added      bigint,
    deleted    bigint,
    old_size   bigint,
    new_size   bigint,
    ord        integer NOT NULL,
    old_mode   integer NOT NULL,
    new_mode   integer NOT NULL,
    similarity smallint,
    status     text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    class      text COLLATE "C" NOT NULL,
    old_oid    bytea,
    new_oid    bytea,
    path       bytea NOT NULL,
    path_text  text NOT NULL,
    old_path   bytea,
    PRIMARY KEY (commit_id, ord)
);
COMMENT ON COLUMN queue_worker_git.file_changes.ord IS
    'the place in git''s list; a tree may hold a path twice';
COMMENT ON COLUMN queue_worker_git.file_changes.added IS
    'NULL for what has no lines (binary) or was not counted, never 0 for these';
COMMENT ON COLUMN queue_worker_git.file_changes.status IS 'A, M, D, R, C or T, as git writes it';
COMMENT ON COLUMN queue_worker_git.file_changes.kind IS
    'text, binary, symlink, gitlink, lfs or unread';
COMMENT ON COLUMN queue_worker_git.file_changes.class IS
    'code, test, doc, config, generated, vendored or data, by the path alone';

CREATE TABLE queue_worker_git.trailers (
    commit_id bigint NOT NULL REFERENCES queue_worker_git.commits ON DELETE CASCADE,
    ord       integer NOT NULL,
    key       text NOT NULL,
    value     text NOT NULL,
    name      text,
    email     text,
    PRIMARY KEY (commit_id, ord)
);

-- Identities under the mailmap of the moment, as git check-mailmap maps them.
CREATE VIEW queue_worker_git.people AS
SELECT i.id, i.repository_id, i.name AS raw_name, i.email AS raw_email,
    COALESCE(m.proper_name, i.name) AS name, COALESCE(m.proper_email, i.email) AS email
FROM queue_worker_git.identities i
LEFT JOIN LATERAL (
    SELECT e.proper_name, e.proper_email
    FROM queue_worker_git.mailmap_entries e
    WHERE e.repository_id = i.repository_id
        AND e.email = lower(i.email COLLATE "C") COLLATE "C"
        AND e.name IN ('', lower(i.name COLLATE "C") COLLATE "C")
    ORDER BY e.name = ''
    LIMIT 1
) m ON true;

-- Lines of merges count for nobody: they were written in the commits that were merged.
CREATE VIEW queue_worker_git.author_days AS
SELECT c.repository_id, c.profile_id, p.name, p.email,
    ((c.author_at AT TIME ZONE 'UTC') + make_interval(mins => COALESCE(c.author_zone, 0)))::date
        AS day,
    count(*) AS commits,
    count(*) FILTER (WHERE c.kind IN ('merge', 'octopus')) AS merges,
    COALESCE(sum(c.files) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint AS files,
    COALESCE(sum(c.added) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint AS added,
    COALESCE(sum(c.deleted) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint AS deleted,
    COALESCE(sum(c.code_added) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint
        AS code_added,
    COALESCE(sum(c.test_added) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint
        AS test_added,
    COALESCE(sum(c.doc_added) FILTER (WHERE c.kind IN ('root', 'normal')), 0)::bigint
        AS doc_added
FROM queue_worker_git.commits c
JOIN queue_worker_git.people p ON p.id = c.author_id
GROUP BY c.repository_id, c.profile_id, p.name, p.email, day;
COMMENT ON VIEW queue_worker_git.author_days IS
    'per author, mailmap applied, and day in the author''s own zone';

CREATE VIEW queue_worker_git.hotspots AS
SELECT c.repository_id, c.profile_id, f.path, min(f.path_text) AS path_text,
    count(DISTINCT c.id) AS revisions, count(DISTINCT (p.name, p.email)) AS authors,
    COALESCE(sum(f.added), 0)::bigint AS added, COALESCE(sum(f.deleted), 0)::bigint AS deleted,
    min(c.author_at) AS first_at, max(c.author_at) AS last_at
FROM queue_worker_git.commits c
JOIN queue_worker_git.file_changes f ON f.commit_id = c.id
JOIN queue_worker_git.people p ON p.id = c.author_id
WHERE c.kind IN ('root', 'normal') AND f.kind = 'text' AND f.class NOT IN ('generated', 'vendored')
GROUP BY c.repository_id, c.profile_id, f.path;
COMMENT ON VIEW queue_worker_git.hotspots IS
    'text files by how often they changed; merges, generated and vendored files left out';

CREATE VIEW queue_worker_git.ownership AS
SELECT repository_id, profile_id, path, path_text, name, email, added, revisions,
    added / NULLIF(sum(added) OVER w, 0) AS share,
    row_number() OVER (w ORDER BY added DESC, revisions DESC, email, name) AS place
FROM (
    SELECT c.repository_id, c.profile_id, f.path, min(f.path_text) AS path_text, p.name, p.email,
        COALESCE(sum(f.added), 0) AS added, count(DISTINCT c.id) AS revisions
    FROM queue_worker_git.commits c
    JOIN queue_worker_git.file_changes f ON f.commit_id = c.id
    JOIN queue_worker_git.people p ON p.id = c.author_id
    WHERE c.kind IN ('root', 'normal') AND f.kind = 'text'
        AND f.class NOT IN ('generated', 'vendored')
    GROUP BY c.repository_id, c.profile_id, f.path, p.name, p.email
) per_author
WINDOW w AS (PARTITION BY repository_id, profile_id, path);
COMMENT ON VIEW queue_worker_git.ownership IS
    'per file and author the share of the lines that were ever added; place 1 added most';

CREATE VIEW queue_worker_git.test_ratio AS
SELECT repository_id, profile_id, date_trunc('week', author_at AT TIME ZONE 'UTC')::date AS week,
    count(*) AS commits, sum(code_added)::bigint AS code_added, sum(test_added)::bigint AS test_added,
    round(sum(test_added)::numeric / NULLIF(sum(code_added), 0), 3) AS ratio
FROM queue_worker_git.commits
WHERE kind IN ('root', 'normal')
GROUP BY repository_id, profile_id, week;
COMMENT ON VIEW queue_worker_git.test_ratio IS
    'per week (UTC, from Monday) the lines added to tests for each line added to code';
