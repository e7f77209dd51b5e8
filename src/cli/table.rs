//! Plain tables: columns aligned with spaces, no lines, good for eyes and for `awk`.
//!
//! Cells are escaped, so that nothing that came from outside acts on the terminal.

use std::io::{self, Write};

use crate::telemetry::escaped;

/// On which side a column's cells are flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a head.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(super) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each column; an empty cell is shown as `-`.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { escaped(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Writes the head and the rows.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.columns.len()).map(|column| width(column).unwrap_or(0)).collect();
        for line in lines {
            let mut text = String::new();
            for ((cell, width), (_, side)) in line.iter().zip(&widths).zip(&self.columns) {
                let cell = match side {
                    Side::Left => format!("{cell:<width$}"),
                    Side::Right => format!("{cell:>width$}"),
                };
                text.push_str(&cell);
                text.push_str("  ");
            }
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Writes names and values, one pair a line, aligned; what is not known is left out.
pub(super) fn write_facts(
    out: &mut impl Write,
    facts: &[(&str, Option<String>)],
) -> io::Result<()> {
    let known = || facts.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let width = known().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in known() {
        writeln!(out, "{name:<width$}  {}", escaped(value))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_gaps_are_visible() {
        let mut table = Table::new(&[("NAME", Side::Left), ("N", Side::Right), ("X", Side::Left)]);
        table.row(["é".into(), "5".into(), String::new()]);
        table.row(["longer\n".into(), "1000".into(), "y".into()]);
        let mut out = Vec::new();
        table.write(&mut out).expect("a Vec takes everything");
        let expected = "NAME         N  X\né            5  -\nlonger\\n  1000  y\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn unknown_facts_are_left_out() {
        let mut out = Vec::new();
        let facts = [("id", Some("a".into())), ("worker", None), ("error", Some("b".into()))];
        write_facts(&mut out, &facts).expect("a Vec takes everything");
        assert_eq!(String::from_utf8(out).expect("text"), "id     a\nerror  b\n");
    }
}
