//! Counts names: types, tests, and module files.

use super::TidyFigure;
use super::tree::{SourceText, SourceTree};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn figures(tree: &SourceTree) -> Vec<TidyFigure> {
    let (one_word, repeated) = types(tree);
    let tests = test_names(tree);
    let matching = |matches: fn(&str) -> bool| -> Vec<String> {
        tests
            .iter()
            .filter(|(name, _)| matches(name))
            .map(|(name, place)| format!("{place}: {name}"))
            .collect()
    };
    let is_long = |name: &str| name.split('_').count() > 8;
    let is_relative =
        |name: &str| ["what", "who", "of", "where"].contains(&name.split('_').next().unwrap_or_default());
    vec![
        one_word,
        repeated,
        TidyFigure::count("test_names_over_8_words", matching(is_long)),
        TidyFigure::count("test_names_without_subject", matching(is_relative)),
        TidyFigure::count("modules_beside_their_folder", beside_folder(tree)),
    ]
}

/// Returns each match of a pattern's group, with its place.
fn found<'t>(source: &'t SourceText, pattern: &Regex) -> Vec<(&'t str, String)> {
    let names = pattern.captures_iter(&source.text).filter_map(|found| found.get(1));
    let with_place = |name: regex::Match<'t>| {
        let line = source.first_line + source.text[..name.start()].matches('\n').count();
        (name.as_str(), format!("{}:{line}", source.path))
    };
    names.map(with_place).collect()
}

/// Returns the percentages of product types that are named by one word, or as two other types. An
/// associated type counts where a trait declares it, because implementations cannot choose its name.
fn types(tree: &SourceTree) -> (TidyFigure, TidyFigure) {
    let definitions = [
        r"(?m)^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union) (\w+)",
        r"(?m)^(?:pub(?:\([^)]*\))? )?type (\w+)",
        r"(?m)^\s+type (\w+)(?:: .*)?;$",
    ]
    .map(|pattern| Regex::new(pattern).expect("a correct pattern"));
    let word = Regex::new("[A-Z][a-z0-9]*").expect("a correct pattern");
    let types: Vec<(&str, String)> = definitions
        .iter()
        .flat_map(|definition| tree.sources.iter().flat_map(|source| found(source, definition)))
        .collect();
    let mut definitions = BTreeMap::<&str, usize>::new();
    types.iter().for_each(|(name, _)| *definitions.entry(name).or_default() += 1);
    let percentage = |figure: &str, counts: &dyn Fn(&str) -> bool| {
        let mut places: Vec<String> = types
            .iter()
            .filter(|(name, _)| counts(name))
            .map(|(name, place)| format!("{name}: {place}"))
            .collect();
        places.sort();
        TidyFigure::rate(figure, places, types.len(), 100)
    };
    (
        percentage("type_names_one_word_percent", &|name| word.find_iter(name).count() == 1),
        percentage("type_names_repeated_percent", &|name| definitions[name] >= 3),
    )
}

fn test_names(tree: &SourceTree) -> Vec<(&str, String)> {
    let test = Regex::new(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*(?:pub )?fn (\w+)").expect("a correct pattern");
    tree.code().flat_map(|source| found(source, &test)).collect()
}

/// Returns the files `foo.rs` that have parts in a folder `foo`: such a file should be
/// `foo/mod.rs`.
fn beside_folder(tree: &SourceTree) -> Vec<String> {
    let paths: BTreeSet<&str> = tree.code().map(|source| source.path.as_str()).collect();
    let has_folder = |path: &&str| {
        let folder = path.replacen(".rs", "/", 1);
        paths.iter().any(|other| other.starts_with(&folder))
    };
    paths.iter().copied().filter(has_folder).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)], name: &str) -> Vec<String> {
        let mut tree = SourceTree::default();
        files.iter().for_each(|(path, text)| tree.add(path, text.to_string(), true));
        let figure = figures(&tree).into_iter().find(|figure| figure.name == name);
        figure.expect("a figure of that name").places
    }

    #[test]
    fn one_word_types_are_counted() {
        let code =
            "pub(crate) struct Roster;\nenum ConnectionTable {}\n    type Error;\n    type Item = ();\n";
        assert_eq!(
            places(&[("a.rs", code)], "type_names_one_word_percent"),
            ["Error: a.rs:3", "Roster: a.rs:1"]
        );
    }

    #[test]
    fn third_type_of_a_name_is_a_repetition() {
        let code = "struct State;\n";
        let two = [("a.rs", code), ("b.rs", code)];
        assert_eq!(places(&two, "type_names_repeated_percent"), Vec::<String>::new());
        let three = [two[0], two[1], ("c.rs", code)];
        assert_eq!(places(&three, "type_names_repeated_percent").len(), 3);
    }

    #[test]
    fn long_and_relative_test_names_are_counted() {
        let code = "#[test]\nfn what_is_it() {}\n#[test]\n#[ignore]\nfn a_b_c_d_e_f_g_h_i() {}\n#[test]\nfn a_b_c_d_e_f_g_h() {}\n";
        assert_eq!(places(&[("a.rs", code)], "test_names_without_subject"), ["a.rs:2: what_is_it"]);
        assert_eq!(places(&[("a.rs", code)], "test_names_over_8_words"), ["a.rs:5: a_b_c_d_e_f_g_h_i"]);
    }

    #[test]
    fn file_beside_its_folder_is_counted() {
        let files = [("src/foo.rs", ""), ("src/foo/part.rs", ""), ("src/bar/mod.rs", ""), ("src/fo.rs", "")];
        assert_eq!(places(&files, "modules_beside_their_folder"), ["src/foo.rs"]);
    }
}
