//! What changed between two values of one type.

use serde_json::{Map, Value};

use super::{
    fields::check_scalar,
    path::PathElement,
    schema::{Form, Items, ListType, MapType, Type},
    set::FieldSet,
    walk::{Misfit, item_elements, items},
};

/// The fields in which two values differ; no field stands in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    /// The comparison without some fields and all below them.
    pub(super) fn without(&self, fields: &FieldSet) -> Self {
        Self {
            added: self.added.without_subtrees(fields),
            modified: self.modified.without_subtrees(fields),
            removed: self.removed.without_subtrees(fields),
        }
    }
}

/// Compares two values of a type. Cost: one walk over what differs.
///
/// # Errors
/// An item of a list cannot be told from others, or a scalar is none on either side.
pub(super) fn compare(ty: Type<'_>, old: &Value, new: &Value) -> Result<Comparison, Misfit> {
    let mut walk = Walk {
        found: Comparison::default(),
        path: Vec::new(),
    };
    walk.value(ty, Some(old), Some(new))?;
    Ok(walk.found)
}

struct Walk {
    found: Comparison,
    path: Vec<PathElement>,
}

impl Walk {
    fn value(
        &mut self,
        ty: Type<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<(), Misfit> {
        if old == new {
            return Ok(());
        }
        let (old_form, new_form) = (ty.form(old), ty.form(new));
        let leaf = match (old, new) {
            (_, None) => self.form(ty, old_form, old, new)?,
            (None, _) => self.form(ty, new_form, old, new)?,
            _ if old_form.is(new_form) => self.form(ty, new_form, old, new)?,
            _ => {
                // A value that changed its form is looked at in both.
                self.form(ty, old_form, old, new)?;
                self.form(ty, new_form, old, new)?
            }
        };
        if !leaf {
            match (old, new) {
                (None, _) => self.found.added.insert(&self.path),
                (_, None) => self.found.removed.insert(&self.path),
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares in one form; whether the place is a leaf.
    fn form<'t>(
        &mut self,
        ty: Type<'t>,
        form: Form<'t>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<bool, Misfit> {
        match form {
            Form::Nothing => Err(Misfit::new("schema error: invalid atom")),
            Form::Scalar(scalar) => {
                let misfit = |value: Option<&Value>| value.and_then(|v| check_scalar(scalar, v));
                if let (Some(misfit), Some(_)) = (misfit(old), misfit(new)) {
                    return Err(misfit);
                }
                self.leaf(old, new);
                Ok(true)
            }
            Form::Map(map) => {
                let fields = |value: Option<&Value>| {
                    value.and_then(Value::as_object).is_none_or(Map::is_empty)
                };
                // Typed objects show fields that are not there: such a struct is not empty.
                let shows_more = map.always_shown().next().is_some()
                    && old.is_some_and(Value::is_object) != new.is_some_and(Value::is_object);
                if map.atomic || (fields(old) && fields(new) && !shows_more) {
                    self.leaf(old, new);
                    return Ok(true);
                }
                self.fields(ty, map, old, new)?;
                Ok(false)
            }
            Form::List(list) => {
                let nothing = items(old).is_empty() && items(new).is_empty();
                if list.items == Items::Atomic || nothing {
                    self.leaf(old, new);
                    return Ok(true);
                }
                self.items(ty, list, items(old), items(new))?;
                Ok(false)
            }
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let set = match (old, new) {
            (None, _) => &mut self.found.added,
            (_, None) => &mut self.found.removed,
            (Some(old), Some(new)) if old != new => &mut self.found.modified,
            _ => return,
        };
        set.insert(&self.path);
    }

    fn fields<'t>(
        &mut self,
        ty: Type<'t>,
        map: &'t MapType,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<(), Misfit> {
        let (old, new) = (
            old.and_then(Value::as_object),
            new.and_then(Value::as_object),
        );
        let named = old.into_iter().flatten().map(|(name, _)| name.as_str());
        let mut names: Vec<&str> = named.collect();
        for (name, _) in new.into_iter().flatten() {
            if !old.is_some_and(|old| old.contains_key(name)) {
                names.push(name);
            }
        }
        if old.is_some() != new.is_some() {
            let shown = map.always_shown();
            let missing = |name: &&str| {
                let has = |fields: Option<&Map<String, Value>>| {
                    fields.is_some_and(|fields| fields.contains_key(*name))
                };
                !has(old) && !has(new)
            };
            names.extend(shown.filter(missing));
        }
        for name in names {
            let Some((of, _)) = ty.field(map, name) else {
                continue;
            };
            let old = old.and_then(|fields| fields.get(name).or_else(|| map.absent(name)));
            let new = new.and_then(|fields| fields.get(name).or_else(|| map.absent(name)));
            self.below(PathElement::Field(name.to_owned()), |walk| {
                walk.value(of, old, new)
            })?;
        }
        Ok(())
    }

    fn items<'t>(
        &mut self,
        ty: Type<'t>,
        list: &'t ListType,
        old: &[Value],
        new: &[Value],
    ) -> Result<(), Misfit> {
        let of = ty.item(list);
        let before = grouped(item_elements(ty, list, old)?, old);
        let after = grouped(item_elements(ty, list, new)?, new);
        let mut elements: Vec<&PathElement> = before.iter().map(|(element, _)| element).collect();
        elements.extend(after.iter().map(|(element, _)| element));
        elements.sort();
        elements.dedup();
        for element in elements {
            let (old, new) = (group(&before, element), group(&after, element));
            self.below(element.clone(), |walk| match (old, new) {
                ([] | [_], [] | [_]) => walk.value(of, old.first().copied(), new.first().copied()),
                // Items that cannot be told apart are one piece.
                ([_, _, ..], [_, _, ..]) => {
                    if old != new {
                        walk.found.modified.insert(&walk.path);
                    }
                    Ok(())
                }
                ([_, _, ..], _) => {
                    if let Some(new) = new.first() {
                        walk.value(of, None, Some(new))?;
                    }
                    walk.found.removed.insert(&walk.path);
                    Ok(())
                }
                _ => {
                    if let Some(old) = old.first() {
                        walk.value(of, Some(old), None)?;
                    }
                    walk.found.added.insert(&walk.path);
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    fn below(
        &mut self,
        element: PathElement,
        step: impl FnOnce(&mut Self) -> Result<(), Misfit>,
    ) -> Result<(), Misfit> {
        self.path.push(element);
        let done = step(self);
        let element = self.path.pop();
        match (done, element) {
            (Err(misfit), Some(element)) => Err(misfit.below(&element)),
            (done, _) => done,
        }
    }
}

/// The items of a list by their element, sorted.
fn grouped(elements: Vec<PathElement>, items: &[Value]) -> Vec<(PathElement, Vec<&Value>)> {
    let mut pairs: Vec<(PathElement, &Value)> = elements.into_iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut groups: Vec<(PathElement, Vec<&Value>)> = Vec::with_capacity(pairs.len());
    for (element, item) in pairs {
        match groups.last_mut() {
            Some((last, items)) if *last == element => items.push(item),
            _ => groups.push((element, vec![item])),
        }
    }
    groups
}

fn group<'a, 'v>(
    groups: &'a [(PathElement, Vec<&'v Value>)],
    element: &PathElement,
) -> &'a [&'v Value] {
    match groups.binary_search_by(|(known, _)| known.cmp(element)) {
        Ok(at) => &groups[at].1,
        Err(_) => &[],
    }
}
