//! The options of a resource against the JSON Schema of its type.
//!
//! A part of JSON Schema is enough for options, and the rest is refused where the type is declared, so that no keyword is
//! ignored: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `minimum`, `maximum`, `minLength`,
//! `maxLength`, and what only describes.

use serde_json::Value;

use crate::model::Options;

/// Where something is wrong, as in `.tags[2]`, and what.
type Fault = (String, String);

/// Keywords that say nothing about a value.
const DESCRIBE: [&str; 6] = [
    "$schema",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
];

const TYPES: [&str; 7] = [
    "null", "boolean", "object", "array", "number", "string", "integer",
];

/// Checks that a schema can be one; `at` is where it stands.
pub(super) fn check_schema(schema: &Options) -> Result<(), Fault> {
    schema_at(String::new(), &Value::Object(schema.clone()))
}

/// Checks the options of a resource.
pub(super) fn check(schema: &Options, options: &Options) -> Result<(), Fault> {
    value_at(
        String::new(),
        &Value::Object(schema.clone()),
        &Value::Object(options.clone()),
    )
}

fn schema_at(at: String, schema: &Value) -> Result<(), Fault> {
    let Some(keywords) = schema.as_object() else {
        return match schema.is_boolean() {
            true => Ok(()),
            false => Err((at, "a schema is expected here".to_owned())),
        };
    };
    for (keyword, said) in keywords {
        let at = format!("{at}.{keyword}");
        let is_size = said.as_u64().is_some();
        let fits = match keyword.as_str() {
            "type" => words(said).is_some_and(|all| all.iter().all(|one| TYPES.contains(one))),
            "enum" => said.is_array(),
            "const" => true,
            "required" => said.is_array() && words(said).is_some(),
            "minimum" | "maximum" => said.is_number(),
            "minLength" | "maxLength" => is_size,
            "additionalProperties" | "items" => {
                schema_at(at, said)?;
                continue;
            }
            "properties" => {
                let Some(all) = said.as_object() else {
                    return Err((at, "keys with schemas are expected here".to_owned()));
                };
                for (name, schema) in all {
                    schema_at(format!("{at}.{name}"), schema)?;
                }
                continue;
            }
            describing if DESCRIBE.contains(&describing) => continue,
            other => return Err((at, format!("the keyword '{other}' is not supported here"))),
        };
        if !fits {
            return Err((at, format!("'{keyword}' cannot be this")));
        }
    }
    Ok(())
}

/// A word, or a list of words.
fn words(said: &Value) -> Option<Vec<&str>> {
    match said {
        Value::String(one) => Some(vec![one]),
        Value::Array(all) => all.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn value_at(at: String, schema: &Value, value: &Value) -> Result<(), Fault> {
    let keyword = |name: &str| schema.get(name);
    if schema == &Value::Bool(false) {
        return Err((at, "this is not taken here".to_owned()));
    }
    let types = keyword("type").and_then(words).unwrap_or_default();
    if !types.is_empty() && !types.iter().any(|name| is_a(value, name)) {
        return Err((at, format!("it must be of type {}", types.join(" or "))));
    }
    let listed = keyword("enum").and_then(Value::as_array);
    if listed.is_some_and(|all| !all.contains(value)) {
        let all: Vec<String> = listed.into_iter().flatten().map(Value::to_string).collect();
        return Err((at, format!("it must be one of {}", all.join(", "))));
    }
    if let Some(only) = keyword("const").filter(|only| *only != value) {
        return Err((at, format!("it must be {only}")));
    }
    let limit = |name: &str| keyword(name).and_then(Value::as_f64);
    let size = match value {
        Value::String(text) => Some((text.chars().count() as f64, "minLength", "maxLength")),
        Value::Number(number) => number.as_f64().map(|size| (size, "minimum", "maximum")),
        _ => None,
    };
    if let Some((size, least, most)) = size {
        if let Some(least) = limit(least).filter(|least| size < *least) {
            return Err((at, format!("it must be at least {least}")));
        }
        if let Some(most) = limit(most).filter(|most| size > *most) {
            return Err((at, format!("it must be at most {most}")));
        }
    }
    if let (Some(items), Value::Array(all)) = (keyword("items"), value) {
        for (number, one) in all.iter().enumerate() {
            value_at(format!("{at}[{number}]"), items, one)?;
        }
    }
    let Value::Object(all) = value else {
        return Ok(());
    };
    let required = keyword("required").and_then(words).unwrap_or_default();
    if let Some(missing) = required.iter().find(|name| !all.contains_key(**name)) {
        return Err((at, format!("the option '{missing}' is missing")));
    }
    for (name, one) in all {
        let own = keyword("properties").and_then(|all| all.get(name));
        let schema = own.or_else(|| keyword("additionalProperties"));
        if schema == Some(&Value::Bool(false)) {
            return Err((
                format!("{at}.{name}"),
                format!("there is no option '{name}'"),
            ));
        }
        if let Some(schema) = schema {
            value_at(format!("{at}.{name}"), schema, one)?;
        }
    }
    Ok(())
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        // 1.0 is a whole number there.
        _ => value.as_f64().is_some_and(|number| number.fract() == 0.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is taken here is what JSON Schema takes.
    #[test]
    fn a_value_is_taken_as_json_schema_takes_it() {
        let schemas = [
            json!({"type": "object", "required": ["bucket"], "additionalProperties": false, "properties": {
                "bucket": {"type": "string", "minLength": 3, "maxLength": 5},
                "part": {"type": ["integer", "null"], "minimum": 1, "maximum": 4},
                "tags": {"type": "array", "items": {"enum": ["a", 2, null]}},
                "only": {"const": {"x": true}}, "never": false, "any": {},
            }}),
            json!({"properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "boolean"}}),
            json!({"title": "everything", "description": "is taken"}),
        ];
        let values = [
            json!({}),
            json!({"bucket": "ab"}),
            json!({"bucket": "äöü"}),
            json!({"bucket": "abcdef"}),
            json!({"bucket": "abc", "part": 4, "tags": ["a", 2, null], "only": {"x": true}, "any": [1]}),
            json!({"bucket": "abc", "part": 1.0}),
            json!({"bucket": "abc", "part": 1.5}),
            json!({"bucket": "abc", "part": 5}),
            json!({"bucket": "abc", "part": null}),
            json!({"bucket": "abc", "tags": ["b"]}),
            json!({"bucket": "abc", "tags": "a"}),
            json!({"bucket": "abc", "only": {}}),
            json!({"bucket": "abc", "never": 1}),
            json!({"bucket": "abc", "more": 1}),
            json!({"a": 1, "b": true}),
            json!({"a": "1"}),
            json!({"b": 1}),
        ];
        for schema in &schemas {
            let validator = jsonschema::validator_for(schema).expect("a schema");
            let own = schema.as_object().expect("an object");
            check_schema(own).expect("a schema");
            for value in &values {
                let taken = check(own, value.as_object().expect("an object"));
                assert_eq!(
                    taken.is_ok(),
                    validator.is_valid(value),
                    "{schema} {value} {taken:?}"
                );
            }
        }
        for wrong in [
            json!({"type": "text"}),
            json!({"properties": {"a": {"pattern": "x"}}}),
            json!({"properties": []}),
            json!({"required": "a"}),
            json!({"items": 3}),
            json!({"minimum": "1"}),
        ] {
            assert!(
                check_schema(wrong.as_object().expect("an object")).is_err(),
                "{wrong}"
            );
        }
    }
}
