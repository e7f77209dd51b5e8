//! A strict reader of the text format of Prometheus, version 0.0.4.
//!
//! It refuses what a scraper would put up with: a series twice, a family in two places, a sample
//! without HELP and TYPE, histograms whose buckets do not add up.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses another part")]

use std::collections::BTreeMap;

/// One family of metrics.
#[derive(Debug, Default)]
pub struct Family {
    pub help: String,
    pub sort: String,
    /// From a sample's name and labels, as written, to its value.
    pub samples: BTreeMap<String, f64>,
}

/// Everything on a page.
#[derive(Debug, Default)]
pub struct Page(pub BTreeMap<String, Family>);

impl Page {
    /// Reads a page, or says which line is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let mut current = String::new();
        if !text.ends_with('\n') {
            return Err("the last line has no end".to_owned());
        }
        for line in text.lines() {
            page.line(line, &mut current).map_err(|problem| format!("{problem}: {line}"))?;
        }
        for (name, family) in &page.0 {
            family.check(name)?;
        }
        Ok(page)
    }

    fn line(&mut self, line: &str, current: &mut String) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("HELP without a text")?;
            let family = Family { help: help.to_owned(), ..Family::default() };
            if self.0.insert(name.to_owned(), family).is_some() {
                return Err("HELP twice".to_owned());
            }
            name.clone_into(current);
            return Ok(());
        }
        let family = self.0.get_mut(current).ok_or("before the first HELP")?;
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, sort) = rest.split_once(' ').ok_or("TYPE without a type")?;
            if name != current || !family.sort.is_empty() {
                return Err("TYPE twice, or in the wrong place".to_owned());
            }
            sort.clone_into(&mut family.sort);
            return Ok(());
        }
        let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
        let name = series.split('{').next().unwrap_or_default();
        let suffix = name.strip_prefix(current.as_str()).ok_or("in another family's place")?;
        let allowed: &[&str] = match family.sort.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" | "gauge" => &[""],
            _ => return Err("no TYPE".to_owned()),
        };
        if !allowed.contains(&suffix) {
            return Err("in another family's place".to_owned());
        }
        let value: f64 = value.parse().map_err(|_| "not a number")?;
        if family.samples.insert(series.to_owned(), value).is_some() {
            return Err("the same series twice".to_owned());
        }
        Ok(())
    }

    /// The value of a series, as it is written.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.0.values().find_map(|family| family.samples.get(series)).copied()
    }

    /// The sum over all series of a family whose labels contain `part`; 0 if there are none.
    pub fn sum(&self, name: &str, part: &str) -> Option<f64> {
        let samples = &self.0.get(name)?.samples;
        Some(samples.iter().filter(|(s, _)| s.contains(part)).map(|(_, value)| value).sum())
    }
}

impl Family {
    fn check(&self, name: &str) -> Result<(), String> {
        if self.help.is_empty() || self.sort.is_empty() || self.samples.is_empty() {
            return Err(format!("{name} lacks HELP, TYPE or samples"));
        }
        if self.sort == "counter" && self.samples.values().any(|value| *value < 0.0) {
            return Err(format!("{name} is below 0"));
        }
        if self.sort == "histogram" {
            for (series, count) in self.samples.iter().filter(|(s, _)| s.contains("_count")) {
                self.check_buckets(series, *count)?;
            }
        }
        Ok(())
    }

    /// Buckets only rise, and the last holds everything.
    fn check_buckets(&self, series: &str, count: f64) -> Result<(), String> {
        let (name, labels) = series.split_once("_count").ok_or("not a count")?;
        let labels = labels.trim_matches(['{', '}']);
        let start = format!("{name}_bucket{{{labels},le=\"");
        let mut buckets: Vec<(f64, f64)> = self
            .samples
            .iter()
            .filter_map(|(s, value)| Some((s.strip_prefix(&start)?.strip_suffix("\"}")?, value)))
            .map(|(bound, value)| (bound.parse().unwrap_or(f64::NAN), *value))
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rises = buckets.is_sorted_by(|a, b| a.1 <= b.1);
        let last = buckets.last().copied();
        if rises && last == Some((f64::INFINITY, count)) {
            Ok(())
        } else {
            Err(format!("the buckets of {series} do not add up: {buckets:?}"))
        }
    }
}

#[test]
fn the_reader_bites() {
    let good = "# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
    assert_eq!(Page::parse(good).unwrap().value("a_total{b=\"c\"}"), Some(1.0));
    for bad in [
        "a_total 1\n",
        "# HELP a_total x\na_total 1\n",
        "# HELP a_total x\n# TYPE a_total counter\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total 1\na_total 1\n",
        "# HELP a_total x\n# TYPE a_total counter\nb_total 1\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total -1\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total 1",
        "# HELP a x\n# TYPE a histogram\na_bucket{k=\"v\",le=\"1\"} 2\n\
         a_bucket{k=\"v\",le=\"+Inf\"} 1\na_sum{k=\"v\"} 1\na_count{k=\"v\"} 1\n",
    ] {
        assert!(Page::parse(bad).is_err(), "{bad}");
    }
}
