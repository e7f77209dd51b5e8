//! `queue-worker git report`: tables of what is known of a repository. Only reads.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::super::table::{Side, Table};
use crate::config::Config;
use crate::handler::git::results::{self, Cell, Grid, Results, Scope};
use crate::supervisor::git_report_results;

/// What a report shows if no view is named.
const OVERVIEW: [View; 5] =
    [View::Summary, View::Authors, View::Hotspots, View::Owners, View::Tests];

/// Show what is known of a repository
///
/// Merges count as commits, but their lines for nobody. The mailmap of the default branch is applied
/// as it was when the whole repository or a range was last asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// The repository's name; without it, the names of all
    repo: Option<String>,
    /// What to show; may be given several times
    #[arg(long, value_name = "VIEW")]
    view: Vec<View>,
    /// As what
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,
    /// At most so many rows of each view
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: u32,
    /// The rules of the results, by their digest; default: the newest
    #[arg(long, value_name = "DIGEST")]
    profile: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum View {
    /// How many commits are in which state
    Summary,
    /// Commits and lines of each author
    Authors,
    /// Commits and lines of each author and day
    Days,
    /// Files by how often they changed
    Hotspots,
    /// Who added most to each file
    Owners,
    /// Lines of tests for each line of code, by week
    Tests,
    /// Commits that were refused, and why
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned columns
    Table,
    /// One view with a head, as RFC 4180 has it
    Csv,
    /// One object
    Json,
}

impl View {
    fn question(self) -> results::Report {
        match self {
            Self::Summary => results::Report::Summary,
            Self::Authors => results::Report::Authors,
            Self::Days => results::Report::Days,
            Self::Hotspots => results::Report::Hotspots,
            Self::Owners => results::Report::Owners,
            Self::Tests => results::Report::Tests,
            Self::Refused => results::Report::Refused,
        }
    }
}

impl Report {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let views = if self.view.is_empty() { OVERVIEW.to_vec() } else { self.view.clone() };
        if self.format == Format::Csv && self.view.len() != 1 {
            bail!("csv has one table: name one view, such as --view authors");
        }
        let results = git_report_results(config).context("postgres.url")?;
        let mut out = io::stdout().lock();
        let Some(repo) = &self.repo else {
            for name in results.names().await? {
                writeln!(out, "{}", crate::telemetry::escaped(&name))?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        let Some(place) = results.find(repo, self.profile.as_deref()).await? else {
            return Err(unknown(repo, self.profile.as_deref(), &results).await);
        };
        let mut grids = Vec::with_capacity(views.len());
        for view in views {
            let question = view.question();
            let grid = results.report(question, Scope { place, limit: self.limit }).await?;
            grids.push((question.name(), grid));
        }
        match self.format {
            Format::Table => tables(&mut out, &grids)?,
            Format::Csv => grids.iter().try_for_each(|(_, grid)| csv(&mut out, grid))?,
            Format::Json => writeln!(out, "{}", object(repo, &grids))?,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn unknown(repo: &str, profile: Option<&str>, results: &Results) -> anyhow::Error {
    if let Some(profile) = profile {
        return anyhow::anyhow!("nothing is known of {repo:?} under the profile {profile:?}");
    }
    let names = results.names().await.unwrap_or_default();
    let known = if names.is_empty() { "none yet".to_owned() } else { names.join(", ") };
    anyhow::anyhow!("nothing is known of a repository {repo:?}; there are: {known}")
}

/// The grids as tables; each under its name if there are several.
pub(super) fn tables(out: &mut impl Write, grids: &[(&str, Grid)]) -> io::Result<()> {
    for (at, (name, grid)) in grids.iter().enumerate() {
        if grids.len() > 1 {
            writeln!(out, "{}{name}", if at > 0 { "\n" } else { "" })?;
        }
        let is_text = |column: usize| {
            grid.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))))
        };
        let side = |column| if is_text(column) { Side::Left } else { Side::Right };
        let columns: Vec<_> =
            grid.columns.iter().enumerate().map(|(at, name)| (*name, side(at))).collect();
        let mut table = Table::new(&columns);
        for row in &grid.rows {
            table.row(row.iter().map(shown));
        }
        table.write(out)?;
    }
    Ok(())
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Count(count) => count.to_string(),
        Cell::Ratio(ratio) => format!("{ratio:.3}"),
        Cell::Text(text) => text.clone(),
    }
}

fn csv(out: &mut impl Write, grid: &Grid) -> io::Result<()> {
    write!(out, "{}\r\n", grid.columns.join(","))?;
    for row in &grid.rows {
        let fields: Vec<String> = row.iter().map(|cell| field(shown(cell))).collect();
        write!(out, "{}\r\n", fields.join(","))?;
    }
    Ok(())
}

/// A field of RFC 4180.
fn field(text: String) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

fn object(repo: &str, grids: &[(&str, Grid)]) -> Value {
    let mut object = Map::from_iter([("repository".to_owned(), json!(repo))]);
    for (name, grid) in grids {
        let rows = grid.rows.iter().map(|row| {
            let pair = |(name, cell): (&&str, &Cell)| ((*name).to_owned(), value(cell));
            Value::Object(grid.columns.iter().zip(row).map(pair).collect())
        });
        object.insert((*name).to_owned(), Value::Array(rows.collect()));
    }
    Value::Object(object)
}

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Count(count) => json!(count),
        Cell::Ratio(ratio) => json!(ratio),
        Cell::Text(text) => json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid {
            columns: vec!["name", "commits", "ratio"],
            rows: vec![
                vec![Cell::Text("A, \"B\"\n".to_owned()), Cell::Count(7), Cell::Null],
                vec![Cell::Text("é".to_owned()), Cell::Count(10), Cell::Ratio(0.5)],
            ],
        }
    }

    fn said(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let expected = "name,commits,ratio\r\n\"A, \"\"B\"\"\n\",7,\r\né,10,0.500\r\n";
        assert_eq!(said(|out| csv(out, &grid())), expected);
    }

    #[test]
    fn tables_escape_and_objects_do_not() {
        let text = said(|out| tables(out, &[("authors", grid())]));
        assert!(text.contains(r#"A, "B"\n"#), "{text}");
        let object = object("r", &[("authors", grid())]);
        assert_eq!(object["authors"][0]["name"], "A, \"B\"\n");
        assert_eq!(object["authors"][0]["ratio"], Value::Null);
        assert_eq!(object["repository"], "r");
    }
}
