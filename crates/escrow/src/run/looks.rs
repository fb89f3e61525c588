//! Which variables, and which words in a text, look like secrets: by the words of a name, and by the look of a value.
//!
//! What looks like one is told by its name, never by its value.

/// Words that names of secrets are made of.
const WORDS: &[&str] = &[
    "ACCESSKEY",
    "ACCESSTOKEN",
    "APIKEY",
    "APITOKEN",
    "AUTH",
    "AUTHKEY",
    "AUTHTOKEN",
    "BEARER",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "DSN",
    "JWT",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PGPASSFILE",
    "PGPASSWORD",
    "PRIVATEKEY",
    "PWD",
    "SECRET",
    "SECRETKEY",
    "SECRETS",
    "SIGNING",
    "TOKEN",
    "TOKENS",
    "WEBHOOK",
];

/// Words with which a name ends that stands for a secret within a value, as in `-Djavax.net.ssl.keyStorePassword=x`.
const LAST_WORDS: &[&str] = &[
    "ACCESSKEY",
    "ACCESSTOKEN",
    "APIKEY",
    "APITOKEN",
    "AUTHKEY",
    "AUTHTOKEN",
    "CREDENTIAL",
    "CREDENTIALS",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PRIVATEKEY",
    "PWD",
    "SECRET",
    "SECRETKEY",
    "TOKEN",
];

/// Pairs of words that do.
const PAIRS: &[(&str, &str)] = &[
    ("ACCESS", "KEY"),
    ("API", "KEY"),
    ("AUTH", "KEY"),
    ("DEPLOY", "KEY"),
    ("ENCRYPTION", "KEY"),
    ("MASTER", "KEY"),
    ("PRIVATE", "KEY"),
    ("SECRET", "KEY"),
    ("SIGNING", "KEY"),
    ("SSH", "KEY"),
    ("CONNECTION", "STRING"),
];

/// Names that look like secrets and are none.
const HARMLESS: [&str; 3] = ["PWD", "OLDPWD", "GIT_ASKPASS"];

/// Variables whose values are full of words with equals signs between them.
const LISTS: [&str; 2] = ["LS_COLORS", "LSCOLORS"];

/// How well-known tokens begin.
const TOKENS: &[&str] = &[
    "-----BEGIN ",
    "AGE-SECRET-KEY-",
    "AIza",
    "AKIA",
    "ASIA",
    "ATATT",
    "dckr_pat_",
    "dop_v1_",
    "eyJ",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "gsk_",
    "hf_",
    "hvs.",
    "npm_",
    "nvapi-",
    "pypi-",
    "rk_live_",
    "shpat_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "tskey-",
    "whsec_",
    "xapp-",
    "xoxb-",
    "xoxe-",
    "xoxp-",
    "ya29.",
];

/// What stands for no secret where one would be.
const EMPTY: [&str; 8] = ["", "0", "1", "true", "false", "none", "null", "prompt"];

/// Addresses whose path is the secret.
const ADDRESSES: [&str; 3] = [
    "hooks.slack.com/services/",
    "/api/webhooks/",
    "webhook.office.com/",
];

/// Whether a variable looks like a secret, by its name or by its value.
pub(crate) fn is_secret(name: &[u8], value: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    let upper = name.to_uppercase();
    if HARMLESS.contains(&upper.as_str()) {
        return false;
    }
    let words = words_of(&name);
    let pair = |two: &[String]| PAIRS.contains(&(&two[0], &two[1]));
    let ends_in_key = words.len() > 1 && words.last().is_some_and(|last| last == "KEY");
    if words.iter().any(|word| WORDS.contains(&word.as_str()))
        || words.windows(2).any(pair)
        || ends_in_key
    {
        return true;
    }
    let value = String::from_utf8_lossy(value);
    !LISTS.contains(&upper.as_str()) && holds_secret(&value)
}

/// Whether a text has a secret in it: a known token, a URL with a user part, a name that stands for a secret with a value
/// behind it, or a long word of mixed letters and digits.
pub(crate) fn holds_secret(value: &str) -> bool {
    has_token(value)
        || has_user_part(value)
        || has_named_secret(value)
        || ADDRESSES.iter().any(|address| value.contains(address))
        || value
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(is_mixed)
}

/// The words of a name in capitals: parted by what is no letter or digit, and before a capital behind a small letter.
fn words_of(name: &str) -> Vec<String> {
    let (mut words, mut word, mut before) = (Vec::new(), String::new(), ' ');
    for c in name.chars() {
        let parts = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if parts && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_uppercase());
        }
        before = c;
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Whether a name that stands before a value names a secret: by its last words, since `password.file` names a file.
fn names_secret(name: &str) -> bool {
    let words = words_of(name);
    let last = |word: &String| LAST_WORDS.contains(&word.as_str());
    let pair = match &words[..] {
        [.., one, two] => PAIRS.contains(&(one, two)),
        _ => false,
    };
    words.last().is_some_and(last) || pair
}

fn has_token(value: &str) -> bool {
    TOKENS.iter().any(|token| {
        value.match_indices(token).any(|(at, _)| {
            let before = value[..at].chars().next_back();
            let apart = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '/');
            let rest = &value[at + token.len()..];
            let word = rest.split(|c: char| c.is_whitespace() || ",;:'\"&".contains(c));
            apart && word.into_iter().next().unwrap_or_default().len() >= 12
        })
    })
}

/// Whether a text has a URL with a user part that is a secret: a password, or, where no name of a user belongs there, the user.
fn has_user_part(value: &str) -> bool {
    let parts: Vec<&str> = value.split("://").collect();
    parts.windows(2).any(|two| {
        let scheme = two[0].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '+');
        let scheme = scheme.into_iter().next().unwrap_or_default();
        let rest = two[1].split([' ', '\t', '\n', '"', '\'']).next();
        let rest = rest.unwrap_or_default();
        let authority = rest.split(['/', '?', '#', ',', '|', ';']).next();
        let authority = authority.unwrap_or_default();
        let Some((user, _)) = authority.rsplit_once('@') else {
            // A password with a slash in it: no port is a word.
            let port = authority.rsplit_once(':').map(|(_, port)| port);
            let is_word =
                |port: &str| !port.is_empty() && !port.bytes().all(|b| b.is_ascii_digit());
            return rest.contains('@') && !authority.starts_with('[') && port.is_some_and(is_word);
        };
        match user.split_once(':') {
            Some((_, password)) if !password.is_empty() => true,
            _ if user.trim_end_matches(':').is_empty() => false,
            // Who logs in to the web by a name alone has a token for a name.
            _ if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
                user != "git"
            }
            _ => user.len() >= 16 && user.bytes().any(|b| b.is_ascii_digit()),
        }
    })
}

/// Whether a text has `NAME=VALUE`, `"NAME": "VALUE"` or `--NAME VALUE` with a name that stands for a secret.
fn has_named_secret(value: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    value.char_indices().any(|(at, c)| {
        let before = value[..at].trim_end_matches(['"', '\'', ' ']);
        let rest = &value[at + c.len_utf8()..];
        let joins = match c {
            '=' => true,
            // Lists of paths have colons too.
            ':' => rest.starts_with([' ', '"', '\'']),
            ' ' => {
                let word = before.rsplit(' ').next().unwrap_or_default();
                word.starts_with("--") && !word.contains('=') && !rest.starts_with('-')
            }
            _ => false,
        };
        let name = before.rsplit(|c| !is_name(c)).next().unwrap_or_default();
        let name = name.rsplit('.').next().map_or(name, |last| match last {
            "" => name,
            last => last,
        });
        // A reference to a secret is none.
        let given = rest.trim_start_matches([' ', '"', '\'']);
        let given = given.split([' ', '"', '\'', ',', ';', '&']).next();
        let given = given.unwrap_or_default();
        let reference = given.starts_with(['$', '{', '<', '%']);
        joins && !reference && !EMPTY.contains(&given) && names_secret(name)
    }) || bearer(value)
}

/// Whether a text has a header that logs in.
fn bearer(value: &str) -> bool {
    let lower = value.to_ascii_lowercase();
    ["bearer ", "basic "].iter().any(|scheme| {
        lower.match_indices(scheme).any(|(at, _)| {
            let before = lower[..at].trim_end().ends_with(':') || at == 0;
            let word = lower[at + scheme.len()..].split_whitespace().next();
            before && word.is_some_and(|word| word.len() >= 8)
        })
    })
}

/// Whether a word is long and has capitals, small letters and digits mixed, as only what a machine chose has.
fn is_mixed(word: &str) -> bool {
    let count = |is: fn(&u8) -> bool| word.as_bytes().iter().filter(|byte| is(byte)).count();
    word.len() >= 32
        && count(u8::is_ascii_digit) >= 4
        && count(u8::is_ascii_uppercase) >= 4
        && count(u8::is_ascii_lowercase) >= 4
}

/// Whether a name matches a pattern, in which `*` stands for anything at its end.
pub(crate) fn matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_name() {
        let secret = "GITHUB_TOKEN AWS_SECRET_ACCESS_KEY NPM_TOKEN DB_PASSWORD pgpassword API_KEY \
            STRIPE_API_KEY MYSQL_PWD GH_PAT AZURE_CLIENT_SECRET GOOGLE_APPLICATION_CREDENTIALS ssh-key KEYSTORE_PASS \
            AUTH NPM_CONFIG__AUTH AZURE_STORAGE_CONNECTION_STRING npm_config__authToken npm_config_//HOST/:_authToken \
            npm_config_//registry.npmjs.org/:_password SCCACHE_REDIS_KEY ANDROID_KEYSTORE_PASSWORD ANDROID_SIGNING \
            gradleAccessKey SENTRY_DSN SLACK_WEBHOOK COMPOSER_AUTH clientSecret";
        for name in secret.split_whitespace() {
            assert!(is_secret(name.as_bytes(), b"x"), "{name}");
        }
        let harmless = "PATH HOME PWD OLDPWD KEYBOARD MONKEY AUTHOR GIT_AUTHOR_NAME TERM LANG PATTERN COMPASS \
            KEY_REPEAT XDG_SESSION_ID PASSENGER_APP_ENV TOKENIZERS_PARALLELISM npm_config_registry LESSKEY MAKEFLAGS";
        for name in harmless.split_whitespace() {
            assert!(!is_secret(name.as_bytes(), b"x"), "{name}");
        }
    }

    #[test]
    fn secrets_are_told_by_value() {
        let long = format!("ghp_{}", "x".repeat(36));
        let secret = [
            long.as_str(),
            "--flag=ghp_0123456789abcdef0123",
            "postgres://ann:pw@db/x",
            "x --url=https://u:p@h/",
            "https://hunter2@goproxy.example",
            "https://proxy.golang.org,https://hunter2@goproxy.example,direct",
            "https://hunter2:@pypi.example/simple",
            "https://pypi.org/simple https://u:p@pypi.example/simple",
            "http://ann:p%40w@proxy:3128",
            "http://ann:p/w@proxy:3128",
            "redis://:pw@cache:6379",
            "-Xmx1g -Djavax.net.ssl.keyStorePassword=hunter2",
            "-Djavax.net.ssl.trustStorePassword='hunter2'",
            "-Dhttp.proxyPassword=hunter2",
            "-Pnexus.token=hunter2",
            "-Psigning.secret=hunter2",
            "TOKEN=hunter2",
            "-j4 -- DEPLOY_TOKEN=hunter2",
            "http://cache.example|bearer-token=hunter2",
            "host=db user=ann password=hunter2",
            "Server=db;User Id=ann;Pwd=hunter2;",
            r#"{"http-basic":{"h":{"password":"hunter2"}}}"#,
            "--password hunter2 --verbose",
            "Authorization: Bearer hunter2hunter2",
            "https://hooks.slack.com/services/T0/B0/x",
            "a7Gq9ZkLm2Xc4Vb8Nw1Er5Ty3Ui6Op0A",
        ];
        for value in secret {
            assert!(is_secret(b"X", value.as_bytes()), "{value}");
        }
        let harmless = [
            "postgres://ann@db/x",
            "ssh://git@github.com/a/b",
            "git+ssh://git@github.com/a/b",
            "https://git@github.com/a/b",
            "https://example.org:8080/a@b",
            "https://proxy.golang.org,direct",
            "https://pypi.org/simple",
            "http://[::1]:3128/a@b",
            "sk-1",
            "a:b@c",
            "-j4 --jobserver-auth=3,4",
            "-Xmx2g -Dfile.encoding=UTF-8 -Djava.security.auth.login.config=/etc/jaas",
            "-Dorg.gradle.daemon=false -Dtoken.file=/x",
            "--max-old-space-size=4096",
            "express:*",
            "/srv/ann/token:/srv/ann/secret:/usr/bin",
            "token=$TOKEN",
            "password=",
            "task-0123456789abcdef",
            "/nix/store/0c1i2xq8yk5l4n3m2p1r0s9t8v7w6x5z-glibc-2.40",
            "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d",
            "da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "-C link-arg=-fuse-ld=mold --cfg tokio_unstable",
            "/tmp/odd \u{fffd}=x:b",
        ];
        for value in harmless {
            assert!(!is_secret(b"X", value.as_bytes()), "{value}");
        }
        assert!(!is_secret(b"LS_COLORS", b"*.token=00;31:*.pwd=01"));
    }

    #[test]
    fn patterns_end_in_a_star_or_are_names() {
        assert!(matches("A_*", b"A_B") && matches("A_*", b"A_") && matches("*", b"X"));
        assert!(!matches("A_*", b"AB") && !matches("A", b"AB") && matches("A", b"A"));
    }
}
