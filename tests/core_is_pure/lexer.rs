//! Just enough of Rust's grammar to tell names and paths from comments and literals.

/// Names, `::` and single characters; comments and literals are left out.
pub(crate) fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match (get(at), get(at + 1)) {
            ('/', '/') => {
                while at < chars.len() && get(at) != '\n' {
                    at += 1;
                }
            }
            ('/', '*') => {
                let mut open = 0;
                loop {
                    match (get(at), get(at + 1)) {
                        ('/', '*') => (open, at) = (open + 1, at + 2),
                        ('*', '/') => (open, at) = (open - 1, at + 2),
                        _ => at += 1,
                    }
                    if open == 0 || at >= chars.len() {
                        break;
                    }
                }
            }
            ('"', _) => at = after_string(&chars, at + 1, 0, true),
            // A lifetime has no closing quote after one character.
            ('\'', '\\') => at = after_string(&chars, at + 1, usize::MAX, true),
            ('\'', _) if get(at + 2) == '\'' => at += 3,
            ('\'', _) => {
                at += 1;
                while get(at).is_alphanumeric() || get(at) == '_' {
                    at += 1;
                }
            }
            (':', ':') => {
                tokens.push("::".into());
                at += 2;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let start = at;
                while get(at).is_alphanumeric() || get(at) == '_' {
                    at += 1;
                }
                let word: String = chars[start..at].iter().collect();
                let hashes = chars[at..].iter().take_while(|it| **it == '#').count();
                let raw = matches!(word.as_str(), "r" | "br" | "cr");
                if raw && get(at + hashes) == '"' {
                    at = after_string(&chars, at + hashes + 1, hashes, false);
                } else if raw && hashes == 1 {
                    at += 1;
                } else {
                    tokens.push(word);
                }
            }
            (c, _) => {
                if !c.is_whitespace() {
                    tokens.push(c.into());
                }
                at += 1;
            }
        }
    }
    tokens
}

/// The place after a string's end; `usize::MAX` hashes stand for a character's single quote.
fn after_string(chars: &[char], mut at: usize, hashes: usize, escapes: bool) -> usize {
    let quote = if hashes == usize::MAX { '\'' } else { '"' };
    let hashes = if hashes == usize::MAX { 0 } else { hashes };
    while at < chars.len() {
        let closed = chars[at] == quote
            && chars[at + 1..].iter().take(hashes).filter(|it| **it == '#').count() == hashes;
        if closed {
            return at + 1 + hashes;
        }
        at += if escapes && chars[at] == '\\' { 2 } else { 1 };
    }
    at
}

pub(crate) fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The names of a path from `at` on.
pub(crate) fn path(tokens: &[String], mut at: usize) -> (Vec<String>, usize) {
    let mut names = vec![tokens[at].clone()];
    while tokens.get(at + 1).is_some_and(|it| it == "::")
        && tokens.get(at + 2).is_some_and(|it| is_name(it))
    {
        at += 2;
        names.push(tokens[at].clone());
    }
    (names, at + 1)
}

/// Every path of a `use`, with the name that it binds.
pub(crate) fn use_tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut names = prefix.to_vec();
    loop {
        match tokens.get(at).map_or(";", String::as_str) {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|it| it != "}") {
                    at = use_tree(tokens, at, &names, paths);
                    at += usize::from(tokens.get(at).is_some_and(|it| it == ","));
                }
                return at + 1;
            }
            "*" => {
                paths.push((names, String::new()));
                return at + 1;
            }
            "as" => {
                paths.push((names, tokens[at + 1].clone()));
                return at + 2;
            }
            name if is_name(name) => {
                if name != "self" || names.is_empty() {
                    names.push(name.to_owned());
                }
                at += 1;
            }
            _ => {
                let bound = names.last().cloned().unwrap_or_default();
                if names.len() > prefix.len() || tokens[at - 1] == "self" {
                    paths.push((names, bound));
                }
                return at;
            }
        }
    }
}
