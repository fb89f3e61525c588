//! The JSON Schema of `escrow.yaml`, from the types that read it and the names that are known.

use serde_json::{Value, json};

use super::Config;
use crate::model::ResourceTypes;
use crate::model::resource::AUTO;
use crate::resource::INHERIT;
use crate::strategy::Registry;

/// The schema. Where a file declares no strategies or types of its own, it takes exactly the
/// names that the registry and the table of types know (rule P8).
pub fn schema(registry: &Registry) -> Value {
    let [strategies, types] = names(registry, &ResourceTypes::default());
    let has_no = |key: Value| json!({"not": key});
    let declares = json!({"required": ["sandbox"], "properties": {
        "sandbox": {"type": "object", "required": ["custom_strategies"]},
    }});
    let mut schema = bare();
    schema["allOf"] = json!([
        {"if": has_no(declares), "then": strategies},
        {"if": has_no(json!({"required": ["resource_types"]})), "then": types},
    ]);
    schema
}

/// The schema for a project: it takes exactly the names that there are, those that its configuration declares among them.
pub fn schema_with(registry: &Registry, types: &ResourceTypes) -> Value {
    let mut schema = bare();
    schema["allOf"] = json!(names(registry, types));
    schema
}

/// The schema without names.
fn bare() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    schema["title"] = json!("escrow.yaml");
    allow_nothing(&mut schema);
    schema
}

/// Where strategies are named, and where types of resources are.
fn names(registry: &Registry, types: &ResourceTypes) -> [Value; 2] {
    let with = |first: &[&str]| {
        let first = first.iter().map(|&name| name.to_owned());
        first.chain(registry.names()).collect::<Vec<_>>()
    };
    let strategy = json!({"enum": with(&[AUTO])});
    let of_resource = json!({"enum": with(&[AUTO, INHERIT])});
    let named = json!({"anyOf": [{"enum": registry.names()}, class()]});
    let kind = json!({"enum": types.names()});
    [
        json!({"properties": {
            "sandbox": {"properties": {"strategy": optional(&strategy)}},
            "resource_types": {"items": {"properties": {
                "sandbox_strategy": optional(&strategy),
                "strategies": {"items": named},
            }}},
            "resources": {"additionalProperties": {"properties": {
                "strategy": optional(&of_resource),
            }}},
        }}),
        json!({"properties": {"resources": {"additionalProperties": {"properties": {
            "type": kind,
        }}}}}),
    ]
}

/// Lets keys that hold lists or further keys stand there without a value, as the reader does.
fn allow_nothing(schema: &mut Value) {
    let defs = schema["$defs"].as_object_mut();
    let mut maps: Vec<&mut Value> = defs
        .into_iter()
        .flat_map(|defs| defs.values_mut())
        .collect();
    for map in &mut maps {
        allow_in(map);
    }
    allow_in(schema);
}

fn allow_in(map: &mut Value) {
    let needed = map["required"].as_array().cloned().unwrap_or_default();
    let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (key, property) in properties {
        let holds = property.get("$ref").is_some()
            || ["array", "object"]
                .map(|kind| json!(kind))
                .contains(&property["type"]);
        if holds && !needed.contains(&json!(key)) {
            *property = json!({"anyOf": [property.take(), {"type": "null"}]});
        }
    }
}

/// One of these names, a class in a module, or nothing.
fn optional(names: &Value) -> Value {
    json!({"anyOf": [names, class(), {"type": "null"}]})
}

/// A class in a module.
fn class() -> Value {
    json!({"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"})
}
