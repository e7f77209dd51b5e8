//! Rows as columns: what the inserting statements take, one array for each column.

use std::borrow::Cow;

use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;

use super::facts::{IdentityKey, key};
use crate::handler::git::analysis::{Analysis, ExtraHeader};
use crate::handler::git::change::{FileChange, path_text};
use crate::handler::git::class::FileClass;
use crate::handler::git::identity::Identity;
use crate::handler::git::oid::ObjectId;

type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// Text that Postgres takes: NUL, which it refuses, is shown as U+2400.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{2400}").into() } else { text.into() }
}

fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn small(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// One commit to be written: the key of its row, and its analysis.
#[derive(Clone, Copy)]
pub(super) struct Commit<'a> {
    pub(super) key: i64,
    pub(super) analysis: &'a Analysis,
}

/// `$1` repository, `$2` profile, then one array for each column.
pub(super) const COMMITS: &str = "\
    INSERT INTO queue_worker_git.commits (repository_id, profile_id, id, oid, tree, kind, author_id, \
        committer_id, author_epoch, committer_epoch, author_zone, committer_zone, author_raw, \
        committer_raw, encoding, subject, body, message_bytes, message_raw, signature, \
        has_mergetag, extra_headers, flags, files, added, deleted, numstat_added, numstat_deleted, \
        binary_files, symlinks, gitlinks, lfs_pointers, renames, mode_changes, merge_extra, \
        code_added, code_deleted, test_added, test_deleted, doc_added, doc_deleted, config_added, \
        config_deleted, author_at, committer_at) \
    SELECT $1, $2, k.id, k.oid, k.tree, k.kind, k.author, k.committer, k.a_epoch, k.c_epoch, \
        k.a_zone, k.c_zone, k.a_raw, k.c_raw, k.encoding, k.subject, k.body, k.bytes, k.raw, \
        k.signature, k.mergetag, k.headers::jsonb, k.flags, k.files, k.added, k.deleted, k.n_added, \
        k.n_deleted, k.binaries, k.symlinks, k.gitlinks, k.lfs, k.renames, k.modes, k.extra, \
        k.code_a, k.code_d, k.test_a, k.test_d, k.doc_a, k.doc_d, k.config_a, k.config_d, \
        to_timestamp(k.a_shown), to_timestamp(k.c_shown) \
    FROM unnest($3::bigint[], $4::bytea[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[], \
        $9::bigint[], $10::bigint[], $11::int[], $12::int[], $13::bytea[], $14::bytea[], \
        $15::text[], $16::text[], $17::text[], $18::bigint[], $19::bytea[], $20::text[], \
        $21::bool[], $22::text[], $23::int[], $24::int[], $25::bigint[], $26::bigint[], \
        $27::bigint[], $28::bigint[], $29::int[], $30::int[], $31::int[], $32::int[], $33::int[], \
        $34::int[], $35::int[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], \
        $40::bigint[], $41::bigint[], $42::bigint[], $43::bigint[], $44::bigint[], $45::bigint[]) \
    AS k (id, oid, tree, kind, author, committer, a_epoch, c_epoch, a_zone, c_zone, a_raw, c_raw, \
        encoding, subject, body, bytes, raw, signature, mergetag, headers, flags, files, added, \
        deleted, n_added, n_deleted, binaries, symlinks, gitlinks, lfs, renames, modes, extra, \
        code_a, code_d, test_a, test_d, doc_a, doc_d, config_a, config_d, a_shown, c_shown)";

pub(super) const PARENTS: &str = "\
    INSERT INTO queue_worker_git.parents (commit_id, ord, oid) \
    SELECT * FROM unnest($1::bigint[], $2::int[], $3::bytea[])";

pub(super) const FILE_CHANGES: &str = "\
    INSERT INTO queue_worker_git.file_changes (commit_id, ord, path, path_text, old_path, status, \
        similarity, old_mode, new_mode, old_oid, new_oid, kind, class, added, deleted, old_size, \
        new_size) \
    SELECT * FROM unnest($1::bigint[], $2::int[], $3::bytea[], $4::text[], $5::bytea[], $6::text[], \
        $7::smallint[], $8::int[], $9::int[], $10::bytea[], $11::bytea[], $12::text[], $13::text[], \
        $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[])";

pub(super) const TRAILERS: &str = "\
    INSERT INTO queue_worker_git.trailers (commit_id, ord, key, value, name, email) \
    SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[])";

/// Binds the rest of [`COMMITS`]; `person` gives the key of an identity's row.
pub(super) fn bind_commits<'q>(
    query: Statement<'q>,
    commits: &[Commit<'q>],
    person: impl Fn(&IdentityKey) -> i64,
) -> Statement<'q> {
    let all = |f: &dyn Fn(&'q Analysis) -> &'q Identity| -> Vec<&'q Identity> {
        commits.iter().map(|commit| f(commit.analysis)).collect()
    };
    let (authors, committers) = (all(&|it| &it.author), all(&|it| &it.committer));
    let people = |them: &[&Identity]| -> Vec<i64> {
        them.iter().map(|identity| person(&key(identity))).collect()
    };
    let query = query
        .bind(of(commits, |commit| commit.key))
        .bind(of(commits, |commit| commit.analysis.id.as_bytes()))
        .bind(of(commits, |commit| commit.analysis.tree.as_bytes()))
        .bind(of(commits, |commit| commit.analysis.kind().as_str()))
        .bind(people(&authors))
        .bind(people(&committers))
        .bind(of(&authors, |it| it.when.epoch))
        .bind(of(&committers, |it| it.when.epoch))
        .bind(of(&authors, |it| it.when.zone_minutes))
        .bind(of(&committers, |it| it.when.zone_minutes))
        .bind(of(&authors, |it| it.raw.as_slice()))
        .bind(of(&committers, |it| it.raw.as_slice()));
    let query = bind_totals(bind_message(query, commits), commits);
    query.bind(of(&authors, |it| it.when.shown())).bind(of(&committers, |it| it.when.shown()))
}

fn bind_message<'q>(query: Statement<'q>, commits: &[Commit<'q>]) -> Statement<'q> {
    query
        .bind(of(commits, |commit| commit.analysis.encoding.as_deref().map(text)))
        .bind(of(commits, |commit| text(&commit.analysis.message.subject)))
        .bind(of(commits, |commit| text(&commit.analysis.message.body)))
        .bind(of(commits, |commit| count(commit.analysis.message.bytes)))
        .bind(of(commits, |commit| commit.analysis.message.raw.as_deref()))
        .bind(of(commits, |commit| commit.analysis.signature.as_str()))
        .bind(of(commits, |commit| commit.analysis.has_mergetag))
        .bind(of(commits, |commit| headers(&commit.analysis.extra_headers)))
}

fn bind_totals<'q>(query: Statement<'q>, commits: &[Commit<'q>]) -> Statement<'q> {
    let big = |f: &dyn Fn(&Analysis) -> u64| of(commits, |commit| count(f(commit.analysis)));
    let little = |f: &dyn Fn(&Analysis) -> u32| of(commits, |commit| small(f(commit.analysis)));
    let mut query = query
        .bind(of(commits, |commit| commit.analysis.flags.bits().cast_signed()))
        .bind(little(&|it| it.totals.files))
        .bind(big(&|it| it.totals.added))
        .bind(big(&|it| it.totals.deleted))
        .bind(big(&|it| it.totals.numstat_added))
        .bind(big(&|it| it.totals.numstat_deleted))
        .bind(little(&|it| it.totals.binary))
        .bind(little(&|it| it.totals.symlinks))
        .bind(little(&|it| it.totals.gitlinks))
        .bind(little(&|it| it.totals.lfs))
        .bind(little(&|it| it.totals.renames))
        .bind(little(&|it| it.totals.mode_changes))
        .bind(of(commits, |commit| commit.analysis.merge_extra_files.map(small)));
    for class in [FileClass::Code, FileClass::Test, FileClass::Doc, FileClass::Config] {
        query = query
            .bind(big(&|it| it.totals.added_in(class)))
            .bind(big(&|it| it.totals.deleted_in(class)));
    }
    query
}

fn headers(headers: &[ExtraHeader]) -> Option<String> {
    let pair = |header: &ExtraHeader| serde_json::json!([text(&header.key), text(&header.value)]);
    let pairs: Vec<serde_json::Value> = headers.iter().map(pair).collect();
    (!pairs.is_empty()).then(|| serde_json::Value::Array(pairs).to_string())
}

/// Binds [`PARENTS`].
pub(super) fn bind_parents<'q>(
    query: Statement<'q>,
    parents: &[(i64, i32, &'q ObjectId)],
) -> Statement<'q> {
    query
        .bind(of(parents, |parent| parent.0))
        .bind(of(parents, |parent| parent.1))
        .bind(of(parents, |parent| parent.2.as_bytes()))
}

/// Binds [`FILE_CHANGES`].
pub(super) fn bind_changes<'q>(
    query: Statement<'q>,
    changes: &[(i64, &'q FileChange)],
) -> Statement<'q> {
    query
        .bind(of(changes, |(key, _)| *key))
        .bind(of(changes, |(_, it)| small(it.ord)))
        .bind(of(changes, |(_, it)| it.path.as_slice()))
        .bind(of(changes, |(_, it)| path_text(&it.path)))
        .bind(of(changes, |(_, it)| it.old_path.as_deref()))
        .bind(of(changes, |(_, it)| it.status.letter().to_string()))
        .bind(of(changes, |(_, it)| it.similarity.map(i16::from)))
        .bind(of(changes, |(_, it)| small(it.old_mode)))
        .bind(of(changes, |(_, it)| small(it.new_mode)))
        .bind(of(changes, |(_, it)| it.old_oid.as_ref().map(ObjectId::as_bytes)))
        .bind(of(changes, |(_, it)| it.new_oid.as_ref().map(ObjectId::as_bytes)))
        .bind(of(changes, |(_, it)| it.kind.as_str()))
        .bind(of(changes, |(_, it)| it.class.as_str()))
        .bind(of(changes, |(_, it)| it.added.map(count)))
        .bind(of(changes, |(_, it)| it.deleted.map(count)))
        .bind(of(changes, |(_, it)| it.old_size.map(count)))
        .bind(of(changes, |(_, it)| it.new_size.map(count)))
}

/// Binds [`TRAILERS`].
pub(super) fn bind_trailers<'q>(query: Statement<'q>, commits: &[Commit<'q>]) -> Statement<'q> {
    let trailers: Vec<_> = commits
        .iter()
        .flat_map(|commit| (0_i32..).zip(&commit.analysis.trailers).map(|it| (commit.key, it)))
        .collect();
    query
        .bind(of(&trailers, |(key, _)| *key))
        .bind(of(&trailers, |(_, (ord, _))| *ord))
        .bind(of(&trailers, |(_, (_, it))| text(&it.key)))
        .bind(of(&trailers, |(_, (_, it))| text(&it.value)))
        .bind(of(&trailers, |(_, (_, it))| it.name.as_deref().map(text)))
        .bind(of(&trailers, |(_, (_, it))| it.email.as_deref().map(text)))
}

fn of<'s, T, C>(rows: &'s [T], column: impl Fn(&'s T) -> C) -> Vec<C> {
    rows.iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgres_refuses_is_shown() {
        assert_eq!(text("a\0b"), "a\u{2400}b");
        assert!(matches!(text("ab"), Cow::Borrowed("ab")));
        let header = ExtraHeader { key: "k".to_owned(), value: "\"\0".to_owned() };
        assert_eq!(headers(&[header]).unwrap(), "[[\"k\",\"\\\"\u{2400}\"]]");
        assert_eq!(headers(&[]), None);
    }
}
