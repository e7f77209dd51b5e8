//! What a task asks for, as JSON:
//!
//! | payload | meaning |
//! | --- | --- |
//! | `{"repo", "url", "commit": "ID"}` | one commit |
//! | `{"repo", "url", "commits": ["ID", …]}` | up to 256 commits |
//! | `{"repo", "url", "range": "FROM..TO"}` | what TO reaches and FROM does not |
//! | `{"repo", "url", "all": true}` | what branches and tags reach |
//!
//! Ids are full. FROM and TO are ids, branches, tags or `HEAD`; without `FROM..` a range begins at the
//! roots. Pure: bytes in, value or refusal out.

use serde_json::{Map, Value, json};

use crate::handler::git::oid::ObjectId;

/// The most commits of one task.
pub const MAX_COMMITS: usize = 256;
/// Bytes of the longest name in a range; git's own limit for a ref is near it.
const MAX_NAME: usize = 255;
/// The fields that there are.
const KNOWN: [&str; 6] = ["repo", "url", "commit", "commits", "range", "all"];
/// Characters of a wrong value that a message repeats.
const SHOWN: usize = 80;

/// What a task asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The name under which results are kept.
    pub repo: String,
    /// Where the repository is to be had.
    pub url: String,
    /// Which commits.
    pub wish: Wish,
}

/// Which commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// These; none is there twice.
    Commits(Vec<ObjectId>),
    /// What `to` reaches and `from` does not.
    Range {
        /// An id, a branch or a tag; none for everything.
        from: Option<String>,
        /// Likewise.
        to: String,
    },
    /// What branches and tags reach.
    All,
}

/// A payload that cannot be run, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// It is no JSON object.
    #[error("payload: not a JSON object: {0}")]
    NoObject(String),
    /// A field is missing, is of a wrong form, or does not belong there.
    #[error("payload: `{field}`: {message}")]
    Field {
        /// Which.
        field: String,
        /// What is wrong with it.
        message: String,
    },
}

fn wrong(field: impl Into<String>, message: impl Into<String>) -> PayloadError {
    PayloadError::Field { field: field.into(), message: message.into() }
}

impl Payload {
    /// Reads a payload.
    pub fn parse(payload: &[u8]) -> Result<Self, PayloadError> {
        let object: Map<String, Value> = serde_json::from_slice(payload)
            .map_err(|error| PayloadError::NoObject(error.to_string()))?;
        if let Some(field) = object.keys().find(|field| !KNOWN.contains(&field.as_str())) {
            return Err(wrong(shown(field), format!("is unknown; there are {}", KNOWN.join(", "))));
        }
        let text = |field: &str| match object.get(field) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(wrong(field, "is not a string")),
            None => Err(wrong(field, "is missing")),
        };
        Ok(Self { repo: text("repo")?, url: text("url")?, wish: wish(&object)? })
    }

    /// The payload of a task for these commits; the same for the same arguments.
    pub fn of_commits(repo: &str, url: &str, commits: &[ObjectId]) -> String {
        let commits: Vec<String> = commits.iter().map(ToString::to_string).collect();
        json!({"repo": repo, "url": url, "commits": commits}).to_string()
    }

    /// The payload of a task for a whole repository.
    pub fn of_all(repo: &str, url: &str) -> String {
        json!({"repo": repo, "url": url, "all": true}).to_string()
    }

    /// The payload of a task for a range.
    pub fn of_range(repo: &str, url: &str, range: &str) -> String {
        json!({"repo": repo, "url": url, "range": range}).to_string()
    }
}

fn wish(object: &Map<String, Value>) -> Result<Wish, PayloadError> {
    let mut given = ["commit", "commits", "range", "all"]
        .into_iter()
        .filter_map(|field| Some((field, object.get(field)?)));
    let Some((field, value)) = given.next() else {
        return Err(wrong("commits", "is missing; give one of commit, commits, range, all"));
    };
    if let Some((other, _)) = given.next() {
        return Err(wrong(other, format!("cannot be there together with `{field}`")));
    }
    match field {
        "commit" => Ok(Wish::Commits(vec![id("commit", value)?])),
        "commits" => commits(value),
        "range" => range(value),
        _ if *value == Value::Bool(true) => Ok(Wish::All),
        _ => Err(wrong("all", "must be true")),
    }
}

fn id(field: &str, value: &Value) -> Result<ObjectId, PayloadError> {
    let text = value.as_str().ok_or_else(|| wrong(field, "is not a string"))?;
    text.parse().map_err(|error| wrong(field, format!("{}: {error}", shown(text))))
}

fn commits(value: &Value) -> Result<Wish, PayloadError> {
    let values = value.as_array().ok_or_else(|| wrong("commits", "is not a list"))?;
    if values.is_empty() || values.len() > MAX_COMMITS {
        let message = format!("has {} ids; give 1 to {MAX_COMMITS}", values.len());
        return Err(wrong("commits", message));
    }
    let mut commits = Vec::with_capacity(values.len());
    for (place, value) in values.iter().enumerate() {
        let commit = id(&format!("commits[{place}]"), value)?;
        if !commits.contains(&commit) {
            commits.push(commit);
        }
    }
    Ok(Wish::Commits(commits))
}

fn range(value: &Value) -> Result<Wish, PayloadError> {
    let text = value.as_str().ok_or_else(|| wrong("range", "is not a string"))?;
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (Some(from), to),
        None => (None, text),
    };
    for name in from.iter().chain([&to]) {
        let fits = !name.is_empty()
            && name.len() <= MAX_NAME
            && !name.starts_with(['-', '.'])
            && !name.contains("..")
            && !name.chars().any(|c| c.is_control() || c.is_whitespace() || "^~:?*[\\".contains(c));
        if !fits {
            let message = format!(
                "{} is neither FROM..TO nor TO, of full ids, branches or tags",
                shown(text)
            );
            return Err(wrong("range", message));
        }
    }
    Ok(Wish::Range { from: from.map(str::to_owned), to: to.to_owned() })
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(SHOWN).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    fn wish_of(more: &str) -> Result<Wish, String> {
        let payload = format!(r#"{{"repo": "r", "url": "https://a/b", {more}}}"#);
        Payload::parse(payload.as_bytes()).map(|it| it.wish).map_err(|error| error.to_string())
    }

    #[test]
    fn the_forms() {
        let id: ObjectId = ID.parse().unwrap();
        let one = Wish::Commits(vec![id]);
        assert_eq!(wish_of(&format!(r#""commit": "{ID}""#)), Ok(one.clone()));
        assert_eq!(wish_of(&format!(r#""commits": ["{ID}", "{ID}"]"#)), Ok(one.clone()));
        assert_eq!(wish_of(r#""all": true"#), Ok(Wish::All));
        let range = |from: Option<&str>, to: &str| {
            Ok(Wish::Range { from: from.map(str::to_owned), to: to.to_owned() })
        };
        assert_eq!(wish_of(r#""range": "v1.0..main""#), range(Some("v1.0"), "main"));
        assert_eq!(wish_of(r#""range": "topic/a""#), range(None, "topic/a"));
        assert_eq!(wish_of(&format!(r#""range": "{ID}..HEAD""#)), range(Some(ID), "HEAD"));
        let made = Payload::of_commits("r", "u", &[id]);
        let payload = Payload { repo: "r".into(), url: "u".into(), wish: one };
        assert_eq!(Payload::parse(made.as_bytes()), Ok(payload));
        assert_eq!(Payload::parse(Payload::of_all("r", "u").as_bytes()).unwrap().wish, Wish::All);
        let made = Payload::of_range("r", "u", "a..b");
        assert_eq!(Payload::parse(made.as_bytes()).map(|it| it.wish), {
            range(Some("a"), "b").map_err(|error: String| PayloadError::NoObject(error))
        });
    }

    #[test]
    fn mistakes_name_the_field() {
        let many = vec![format!("\"{ID}\""); MAX_COMMITS + 1].join(",");
        for (more, named) in [
            (r#""commit": "HEAD""#.to_owned(), "`commit`"),
            (r#""commit": 7"#.to_owned(), "`commit`"),
            (format!(r#""commits": ["{ID}", "--output=x"]"#), "`commits[1]`"),
            (r#""commits": []"#.to_owned(), "`commits`"),
            (r#""commits": "x""#.to_owned(), "`commits`"),
            (format!(r#""commits": [{many}]"#), "`commits`"),
            (r#""range": "a...b""#.to_owned(), "`range`"),
            (r#""range": "--all""#.to_owned(), "`range`"),
            (r#""range": "a..-b""#.to_owned(), "`range`"),
            (r#""range": "a^..b""#.to_owned(), "`range`"),
            (r#""range": "..b""#.to_owned(), "`range`"),
            (r#""all": false"#.to_owned(), "`all`"),
            (format!(r#""all": true, "commit": "{ID}""#), "`all`"),
            (r#""depth": 1"#.to_owned(), "depth"),
        ] {
            let error = wish_of(&more).expect_err(&more);
            assert!(error.contains(named), "{more}: {error}");
        }
        for (payload, named) in [
            ("", "JSON"),
            ("[]", "JSON"),
            (r#"{"url": "u", "all": true}"#, "`repo`"),
            (r#"{"repo": "r", "all": true}"#, "`url`"),
            (r#"{"repo": "r", "url": 1, "all": true}"#, "`url`"),
            (r#"{"repo": "r", "url": "u"}"#, "commits"),
        ] {
            let error = Payload::parse(payload.as_bytes()).expect_err(payload).to_string();
            assert!(error.contains(named), "{payload}: {error}");
        }
    }
}
