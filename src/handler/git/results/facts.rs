//! What commits share: repository, profile, mailmap, and who wrote them.
//!
//! Each is written in a transaction of its own, before the commits that name it. A person whom no
//! commit names does no harm.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::columns::text;
use super::mailmap::Mailmap;
use super::{Place, Results, ResultsError};
use crate::handler::git::identity::Identity;
use crate::handler::git::mirror::Source;
use crate::handler::git::profile::Profile;

const PLACE: &str = "\
    SELECT r.id, p.id FROM queue_worker_git.repositories r, queue_worker_git.profiles p \
    WHERE r.name = $1 AND r.url = $2 AND p.digest = $3";
/// Reads first: an upsert that changes nothing would still cost a row version and a number.
const REPOSITORY: &str =
    "SELECT id FROM queue_worker_git.repositories WHERE name = $1 AND url = $2";
const NEW_REPOSITORY: &str = "\
    INSERT INTO queue_worker_git.repositories (name, url) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET url = EXCLUDED.url RETURNING id";
const PROFILE: &str = "SELECT id FROM queue_worker_git.profiles WHERE digest = $1";
const NEW_PROFILE: &str = "\
    INSERT INTO queue_worker_git.profiles (digest, spec) VALUES ($1, $2::jsonb) \
    ON CONFLICT (digest) DO UPDATE SET digest = EXCLUDED.digest RETURNING id";

const IDENTITIES: &str = "\
    SELECT digest, id FROM queue_worker_git.identities \
    WHERE repository_id = $1 AND digest = ANY($2)";
const NEW_IDENTITIES: &str = "\
    INSERT INTO queue_worker_git.identities (repository_id, digest, name, email) \
    SELECT $1, k.digest, k.name, k.email \
    FROM unnest($2::bytea[], $3::text[], $4::text[]) AS k (digest, name, email) \
    ORDER BY k.digest ON CONFLICT (repository_id, digest) DO NOTHING";

const SAME_MAILMAP: &str = "\
    UPDATE queue_worker_git.repositories SET mailmap = $2 \
    WHERE id = $1 AND mailmap IS DISTINCT FROM $2";
const FORGET_MAILMAP: &str =
    "DELETE FROM queue_worker_git.mailmap_entries WHERE repository_id = $1";
const NEW_MAILMAP: &str = "\
    INSERT INTO queue_worker_git.mailmap_entries \
        (repository_id, email, name, proper_name, proper_email) \
    SELECT $1, k.* FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS k";

/// What an identity is known by.
pub(super) type IdentityKey = [u8; 32];

/// The key of an identity: names may be too long for an index.
pub(super) fn key(identity: &Identity) -> IdentityKey {
    let mut hasher = Sha256::new();
    hasher.update((identity.name.len() as u64).to_be_bytes());
    hasher.update(&identity.name);
    hasher.update(&identity.email);
    hasher.finalize().into()
}

impl Results {
    /// The keys of a repository and a profile, which are noted if they are new.
    pub async fn place(&self, source: &Source, profile: &Profile) -> Result<Place, ResultsError> {
        let (digest, spec) = (profile.id(), profile.spec().to_string());
        self.call("note the repository", async |connection| {
            let known = sqlx::query(PLACE)
                .bind(source.name())
                .bind(source.url())
                .bind(&digest)
                .fetch_optional(&mut *connection)
                .await?;
            if let Some(row) = known {
                return Ok(Place { repository: row.get(0), profile: row.get(1) });
            }
            let found: Option<i64> = sqlx::query_scalar(REPOSITORY)
                .bind(source.name())
                .bind(source.url())
                .fetch_optional(&mut *connection)
                .await?;
            let repository = match found {
                Some(id) => id,
                None => {
                    sqlx::query_scalar(NEW_REPOSITORY)
                        .bind(source.name())
                        .bind(source.url())
                        .fetch_one(&mut *connection)
                        .await?
                }
            };
            let found: Option<i32> =
                sqlx::query_scalar(PROFILE).bind(&digest).fetch_optional(&mut *connection).await?;
            let profile = match found {
                Some(id) => id,
                None => {
                    sqlx::query_scalar(NEW_PROFILE)
                        .bind(&digest)
                        .bind(&spec)
                        .fetch_one(connection)
                        .await?
                }
            };
            Ok(Place { repository, profile })
        })
        .await
    }

    /// Takes over the content of a mailmap, unless it is the one that is there; `None` for a
    /// repository without one.
    pub async fn set_mailmap(
        &self,
        place: Place,
        content: Option<&[u8]>,
    ) -> Result<(), ResultsError> {
        let digest = content.map(|content| Sha256::digest(content).to_vec());
        self.call("note the mailmap", async |connection| {
            let mut transaction = connection.begin().await?;
            let changed = sqlx::query(SAME_MAILMAP)
                .bind(place.repository)
                .bind(digest)
                .execute(&mut *transaction)
                .await?;
            if changed.rows_affected() == 0 {
                return transaction.commit().await;
            }
            sqlx::query(FORGET_MAILMAP).bind(place.repository).execute(&mut *transaction).await?;
            let mailmap = Mailmap::parse(content.unwrap_or_default());
            let entries: Vec<_> = mailmap.entries().collect();
            sqlx::query(NEW_MAILMAP)
                .bind(place.repository)
                .bind(entries.iter().map(|entry| entry.email.as_str()).collect::<Vec<_>>())
                .bind(entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>())
                .bind(entries.iter().map(|entry| entry.proper_name.as_deref()).collect::<Vec<_>>())
                .bind(entries.iter().map(|entry| entry.proper_email.as_deref()).collect::<Vec<_>>())
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await
        })
        .await
    }

    /// The keys of the rows of identities, which are written if they are new.
    pub(super) async fn identities<'a>(
        &self,
        repository: i64,
        identities: impl Iterator<Item = &'a Identity>,
    ) -> Result<HashMap<IdentityKey, i64>, ResultsError> {
        let wanted: HashMap<IdentityKey, &Identity> =
            identities.map(|identity| (key(identity), identity)).collect();
        self.call("note identities", async |connection| {
            let keys: Vec<&[u8]> = wanted.keys().map(<[u8; 32]>::as_slice).collect();
            let mut known = look_up(connection, repository, &keys).await?;
            let missing: Vec<_> =
                wanted.iter().filter(|(key, _)| !known.contains_key(*key)).collect();
            if !missing.is_empty() {
                sqlx::query(NEW_IDENTITIES)
                    .bind(repository)
                    .bind(missing.iter().map(|(key, _)| key.as_slice()).collect::<Vec<_>>())
                    .bind(missing.iter().map(|(_, it)| text(&it.name)).collect::<Vec<_>>())
                    .bind(missing.iter().map(|(_, it)| text(&it.email)).collect::<Vec<_>>())
                    .execute(&mut *connection)
                    .await?;
                known = look_up(connection, repository, &keys).await?;
            }
            Ok(known)
        })
        .await
    }
}

async fn look_up(
    connection: &mut PgConnection,
    repository: i64,
    keys: &[&[u8]],
) -> Result<HashMap<IdentityKey, i64>, sqlx::Error> {
    let rows = sqlx::query(IDENTITIES).bind(repository).bind(keys).fetch_all(connection).await?;
    let known = rows.iter().filter_map(|row| {
        let key: IdentityKey = row.get::<&[u8], _>(0).try_into().ok()?;
        Some((key, row.get(1)))
    });
    Ok(known.collect())
}
