//! What people ask of the results: small tables, ready to be shown.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use super::{Place, Results, ResultsError};

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// How many commits are in which state, and why some were refused.
    Summary,
    /// Per author: commits, merges, lines.
    Authors,
    /// Per author and day.
    Days,
    /// Files by how often they changed.
    Hotspots,
    /// Files with who added most to them.
    Owners,
    /// Per week the lines of tests for each line of code.
    Tests,
    /// Commits that were refused for good or wait for another attempt.
    Refused,
}

/// Which rows a report is about, and how many it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The repository and the profile.
    pub place: Place,
    /// The most rows.
    pub limit: u32,
}

/// A cell of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing is known.
    Null,
    /// A count.
    Count(i64),
    /// A share or a ratio.
    Ratio(f64),
    /// Everything else.
    Text(String),
}

/// Rows under named columns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grid {
    /// Names, in lower case.
    pub columns: Vec<&'static str>,
    /// Cells, as many as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// What the type of a column is.
#[derive(Debug, Clone, Copy)]
enum Column {
    Count,
    Ratio,
    Text,
}

impl Report {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Summary,
        Self::Authors,
        Self::Days,
        Self::Hotspots,
        Self::Owners,
        Self::Tests,
        Self::Refused,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Authors => "authors",
            Self::Days => "days",
            Self::Hotspots => "hotspots",
            Self::Owners => "owners",
            Self::Tests => "tests",
            Self::Refused => "refused",
        }
    }

    fn columns(self) -> &'static [(&'static str, Column)] {
        use Column::{Count, Ratio, Text};
        match self {
            Self::Summary => {
                &[("state", Text), ("commits", Count), ("files", Count), ("attempts", Count)]
            }
            Self::Authors => &[
                ("name", Text),
                ("email", Text),
                ("commits", Count),
                ("merges", Count),
                ("files", Count),
                ("added", Count),
                ("deleted", Count),
                ("first_day", Text),
                ("last_day", Text),
            ],
            Self::Days => &[
                ("day", Text),
                ("name", Text),
                ("email", Text),
                ("commits", Count),
                ("merges", Count),
                ("files", Count),
                ("added", Count),
                ("deleted", Count),
                ("code_added", Count),
                ("test_added", Count),
                ("doc_added", Count),
            ],
            Self::Hotspots => &[
                ("path", Text),
                ("revisions", Count),
                ("authors", Count),
                ("added", Count),
                ("deleted", Count),
                ("last_day", Text),
            ],
            Self::Owners => &[
                ("path", Text),
                ("name", Text),
                ("email", Text),
                ("share", Ratio),
                ("added", Count),
                ("revisions", Count),
            ],
            Self::Tests => &[
                ("week", Text),
                ("commits", Count),
                ("code_added", Count),
                ("test_added", Count),
                ("ratio", Ratio),
            ],
            Self::Refused => &[
                ("commit", Text),
                ("state", Text),
                ("code", Text),
                ("attempts", Count),
                ("detail", Text),
            ],
        }
    }

    /// `$1` repository, `$2` profile, `$3` the most rows.
    const fn statement(self) -> &'static str {
        match self {
            Self::Summary => {
                "SELECT COALESCE(a.error_code, a.status) AS state, count(*), \
                     COALESCE(sum(c.files), 0)::bigint, sum(a.attempts)::bigint \
                 FROM queue_worker_git.analyses a \
                 LEFT JOIN queue_worker_git.commits c ON c.id = a.id \
                 WHERE a.repository_id = $1 AND a.profile_id = $2 \
                 GROUP BY state ORDER BY count(*) DESC, state LIMIT $3"
            }
            Self::Authors => {
                "SELECT name, email, sum(commits)::bigint, sum(merges)::bigint, sum(files)::bigint, \
                     sum(added)::bigint, sum(deleted)::bigint, min(day)::text, max(day)::text \
                 FROM queue_worker_git.author_days WHERE repository_id = $1 AND profile_id = $2 \
                 GROUP BY name, email ORDER BY sum(commits) DESC, name, email LIMIT $3"
            }
            Self::Days => {
                "SELECT day::text, name, email, commits, merges, files, added, deleted, code_added, \
                     test_added, doc_added \
                 FROM queue_worker_git.author_days WHERE repository_id = $1 AND profile_id = $2 \
                 ORDER BY day DESC NULLS LAST, name, email LIMIT $3"
            }
            Self::Hotspots => {
                "SELECT path_text, revisions, authors, added, deleted, \
                     (last_at AT TIME ZONE 'UTC')::date::text \
                 FROM queue_worker_git.hotspots WHERE repository_id = $1 AND profile_id = $2 \
                 ORDER BY revisions DESC, added + deleted DESC, path LIMIT $3"
            }
            Self::Owners => {
                "SELECT path_text, name, email, round(share, 3)::float8, added::bigint, revisions \
                 FROM queue_worker_git.ownership \
                 WHERE repository_id = $1 AND profile_id = $2 AND place = 1 \
                 ORDER BY added DESC, path LIMIT $3"
            }
            Self::Tests => {
                "SELECT week::text, commits, code_added, test_added, ratio::float8 \
                 FROM queue_worker_git.test_ratio WHERE repository_id = $1 AND profile_id = $2 \
                 ORDER BY week DESC NULLS LAST LIMIT $3"
            }
            Self::Refused => {
                "SELECT encode(oid, 'hex'), status, error_code, attempts::bigint, error_detail \
                 FROM queue_worker_git.analyses WHERE repository_id = $1 AND profile_id = $2 \
                     AND (status = 'failed' OR error_detail IS NOT NULL) \
                 ORDER BY error_code NULLS LAST, oid LIMIT $3"
            }
        }
    }
}

/// The newest profile under which something of the repository is known.
const NEWEST: &str = "\
    SELECT a.repository_id, a.profile_id, p.digest FROM queue_worker_git.analyses a \
    JOIN queue_worker_git.repositories r ON r.id = a.repository_id \
    JOIN queue_worker_git.profiles p ON p.id = a.profile_id \
    WHERE r.name = $1 AND ($2::text IS NULL OR p.digest = $2) \
    ORDER BY a.profile_id DESC LIMIT 1";

const NAMES: &str = "SELECT name FROM queue_worker_git.repositories ORDER BY name LIMIT 1000";

impl Results {
    /// Where the results of a repository are: under the profile with that digest, or the newest.
    pub async fn find(
        &self,
        repository: &str,
        profile: Option<&str>,
    ) -> Result<Option<Place>, ResultsError> {
        let row = self
            .call("look up the repository", async |connection| {
                sqlx::query(NEWEST).bind(repository).bind(profile).fetch_optional(connection).await
            })
            .await?;
        Ok(row.map(|row| Place { repository: row.get(0), profile: row.get(1) }))
    }

    /// The names of the repositories, the first thousand.
    pub async fn names(&self) -> Result<Vec<String>, ResultsError> {
        self.call("list repositories", async |connection| {
            sqlx::query_scalar(NAMES).fetch_all(connection).await
        })
        .await
    }

    /// Answers a question.
    pub async fn report(&self, report: Report, scope: Scope) -> Result<Grid, ResultsError> {
        let rows = self
            .call("report", async |connection| {
                sqlx::query(AssertSqlSafe(report.statement()))
                    .bind(scope.place.repository)
                    .bind(scope.place.profile)
                    .bind(i64::from(scope.limit))
                    .fetch_all(connection)
                    .await
            })
            .await?;
        let columns = report.columns();
        Ok(Grid {
            columns: columns.iter().map(|(name, _)| *name).collect(),
            rows: rows.iter().map(|row| cells(row, columns)).collect(),
        })
    }

    /// Name and text of each question's statement, for a test that prepares them all.
    pub fn statements() -> impl Iterator<Item = (&'static str, &'static str)> {
        Report::ALL.into_iter().map(|report| (report.name(), report.statement()))
    }
}

fn cells(row: &PgRow, columns: &[(&'static str, Column)]) -> Vec<Cell> {
    let cell = |(at, (_, column)): (usize, &(&'static str, Column))| match column {
        Column::Count => row.get::<Option<i64>, _>(at).map_or(Cell::Null, Cell::Count),
        Column::Ratio => row.get::<Option<f64>, _>(at).map_or(Cell::Null, Cell::Ratio),
        Column::Text => row.get::<Option<String>, _>(at).map_or(Cell::Null, Cell::Text),
    };
    columns.iter().enumerate().map(cell).collect()
}
