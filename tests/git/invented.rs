//! A history of any length from a seed, as `git fast-import` reads it.
//!
//! It has what real histories have: renames with and without edits, moved folders, merges and
//! octopuses, binary files, modes, links, submodules, empty commits, paths of any bytes, messages
//! with and without trailers.

use std::collections::BTreeMap;
use std::io::Write as _;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Branches that grow side by side.
const BRANCHES: usize = 4;

#[derive(Clone)]
struct File {
    mode: &'static str,
    content: Vec<u8>,
}

#[derive(Clone, Default)]
struct Branch {
    tip: Option<usize>,
    files: BTreeMap<Vec<u8>, File>,
}

struct Author {
    rng: StdRng,
    out: Vec<u8>,
    branches: Vec<Branch>,
    marks: usize,
}

/// A stream of `commits` commits.
pub(crate) fn history(seed: u64, commits: usize) -> Vec<u8> {
    let mut author = Author {
        rng: StdRng::seed_from_u64(seed),
        out: Vec::new(),
        branches: vec![Branch::default(); BRANCHES],
        marks: 0,
    };
    for _ in 0..commits {
        author.commit();
    }
    author.out
}

impl Author {
    fn dice(&mut self, sides: u32) -> u32 {
        self.rng.random_range(0..sides)
    }

    fn commit(&mut self) {
        let at = self.rng.random_range(0..BRANCHES);
        let mut branch = self.branches[at].clone();
        let merged = self.merged(at);
        self.marks += 1;
        let mark = self.marks;
        let (author, date) = (self.dice(7), 1_000_000_000 + mark * 977);
        let zone = ["+0000", "+0530", "-0930", "+1245"][self.dice(4) as usize];
        let message = self.message(mark);
        let out = &mut self.out;
        writeln!(out, "commit refs/heads/b{at}\nmark :{mark}").unwrap();
        writeln!(out, "author Autör {author} <a{author}@example.com> {date} {zone}").unwrap();
        writeln!(out, "committer C O Mitter <c@example.com> {date} +0000").unwrap();
        writeln!(out, "data {}\n{message}", message.len()).unwrap();
        if let Some(tip) = branch.tip {
            writeln!(out, "from :{tip}").unwrap();
        }
        for tip in &merged {
            writeln!(out, "merge :{tip}").unwrap();
        }
        for _ in 0..self.dice(6) {
            self.change(&mut branch.files);
        }
        if self.dice(40) == 0 {
            self.move_folder(&mut branch.files);
        }
        branch.tip = Some(mark);
        self.branches[at] = branch;
    }

    /// The tips that a commit on a branch merges, seldom any; without them a branch that has none
    /// begins a history of its own.
    fn merged(&mut self, at: usize) -> Vec<usize> {
        if self.branches[at].tip.is_none() {
            return Vec::new();
        }
        let count = match self.dice(20) {
            0 => 2,
            1 | 2 => 1,
            _ => 0,
        };
        let others = (0..BRANCHES).filter(|other| *other != at);
        others.filter_map(|other| self.branches[other].tip).take(count).collect()
    }

    fn message(&mut self, mark: usize) -> String {
        let subject = ["fix: a thing", "Änderung", "two\nlines of subject", "", "  indented"];
        let mut message = format!("{} {mark}\n", subject[self.dice(5) as usize]);
        let bodies = [
            "\nA body\nof two lines.\n",
            "\nA body.\n\nSigned-off-by: A <a@x>\nCo-authored-by: B é <b@x>\n",
            "\nFixes: 12\nReviewed-by: C <c@x>\n  continued\nand then text\n",
            "\ntext\nSigned-off-by: A <a@x>\n(cherry picked from commit 1234)\n",
            "\n\n\nBody\n\nChange-Id: I1\nKey : value\n\n\n",
            "\n# a comment\nAcked-by: D\n# another\n",
            "",
        ];
        message.push_str(bodies[self.dice(7) as usize]);
        message
    }

    fn path(&mut self) -> Vec<u8> {
        let folders: [&[u8]; 6] =
            [b"", b"src/", b"src/deep/er/", b"tests/", b"d\xc3\xb6c/", b"a => b/"];
        let names: [&[u8]; 8] = [
            b"main.c",
            b"caf\xe9",
            b"new\nline",
            b"ta\tb",
            b"q\"uote",
            b"{x => y}",
            b" lead",
            b"-x",
        ];
        let mut path = folders[self.dice(6) as usize].to_vec();
        if self.dice(3) == 0 {
            path.extend_from_slice(names[self.dice(8) as usize]);
        } else {
            write!(path, "file{}.rs", self.dice(60)).unwrap();
        }
        path
    }

    fn lines(&mut self, most: u32) -> Vec<u8> {
        let mut content = Vec::new();
        for _ in 0..self.dice(most) {
            writeln!(content, "line {}", self.dice(50)).unwrap();
        }
        if self.dice(5) == 0 {
            content.extend_from_slice(b"no newline at the end");
        }
        content
    }

    fn new_file(&mut self) -> File {
        match self.dice(20) {
            0 => File { mode: "120000", content: b"../target".to_vec() },
            1 => {
                File { mode: "160000", content: format!("{:040x}", self.dice(9) + 1).into_bytes() }
            }
            2 | 3 => {
                let mut content = self.lines(30);
                content.insert(0, 0);
                File { mode: "100644", content }
            }
            4 => File { mode: "100755", content: self.lines(30) },
            5 => File { mode: "100644", content: Vec::new() },
            6 => {
                let number = self.dice(9);
                let content = format!(
                    "version https://git-lfs.github.com/spec/v1\noid sha256:{number:064}\nsize {number}\n"
                );
                File { mode: "100644", content: content.into_bytes() }
            }
            7 => File { mode: "100644", content: b"caf\xe9 \xff\r\nx\r\n".to_vec() },
            _ => File { mode: "100644", content: self.lines(80) },
        }
    }

    fn change(&mut self, files: &mut BTreeMap<Vec<u8>, File>) {
        let some = self.rng.random_range(0..files.len().max(1));
        let known = files.keys().nth(some).cloned();
        match (self.dice(12), known) {
            (0 | 1, Some(path)) => {
                self.delete(files, &path);
            }
            (2 | 3, Some(path)) => {
                let mut file = self.delete(files, &path);
                if self.dice(2) == 0 && file.mode.starts_with("100") {
                    self.edit(&mut file.content);
                }
                let to = self.path();
                self.write(files, to, file);
            }
            (4, Some(path)) => {
                let mut file = files[&path].clone();
                file.mode = match file.mode {
                    "100644" => "100755",
                    "100755" => "100644",
                    other => other,
                };
                self.write(files, path, file);
            }
            (5..=8, Some(path)) => {
                let mut file = files[&path].clone();
                if file.mode.starts_with("100") {
                    self.edit(&mut file.content);
                }
                self.write(files, path, file);
            }
            (9, Some(path)) => {
                let file = self.new_file();
                self.write(files, path, file);
            }
            _ => {
                let (path, file) = (self.path(), self.new_file());
                self.write(files, path, file);
            }
        }
    }

    /// Changes some lines in the middle.
    fn edit(&mut self, content: &mut Vec<u8>) {
        let more = self.lines(6);
        let at = self.rng.random_range(0..=content.len());
        let at = content[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        content.splice(at..at, more);
        if self.dice(2) == 0 {
            let end = content.len().saturating_sub(9);
            content.truncate(end);
        }
    }

    fn move_folder(&mut self, files: &mut BTreeMap<Vec<u8>, File>) {
        let moved: Vec<_> =
            files.keys().filter(|path| path.starts_with(b"src/")).cloned().collect();
        for path in moved {
            let file = self.delete(files, &path);
            let to = [b"moved/".as_slice(), &path[4..]].concat();
            self.write(files, to, file);
        }
    }

    fn delete(&mut self, files: &mut BTreeMap<Vec<u8>, File>, path: &[u8]) -> File {
        self.out.extend_from_slice(b"D ");
        self.out.extend_from_slice(quoted(path).as_bytes());
        self.out.push(b'\n');
        files.remove(path).unwrap()
    }

    fn write(&mut self, files: &mut BTreeMap<Vec<u8>, File>, path: Vec<u8>, file: File) {
        let shown = quoted(&path);
        if file.mode == "160000" {
            let commit = String::from_utf8_lossy(&file.content).into_owned();
            writeln!(self.out, "M 160000 {commit} {shown}").unwrap();
        } else {
            writeln!(self.out, "M {} inline {shown}\ndata {}", file.mode, file.content.len())
                .unwrap();
            self.out.extend_from_slice(&file.content);
            self.out.push(b'\n');
        }
        files.insert(path, file);
    }
}

/// A path as fast-import reads it between quotes.
fn quoted(path: &[u8]) -> String {
    let escaped: Vec<String> = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"{}\"", escaped.concat())
}
