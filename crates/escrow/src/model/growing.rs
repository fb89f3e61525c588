//! A list that only grows, so that what is in it can be borrowed for as long as the list.

use std::sync::OnceLock;

/// A list that only grows.
pub(crate) struct Growing<T> {
    first: OnceLock<Box<Node<T>>>,
}

struct Node<T> {
    value: T,
    next: OnceLock<Box<Self>>,
}

impl<T> Default for Growing<T> {
    fn default() -> Self {
        Self {
            first: OnceLock::new(),
        }
    }
}

impl<T> Growing<T> {
    /// Everything in it, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let first = self.first.get();
        let all = std::iter::successors(first, |node| node.next.get());
        all.map(|node| &node.value)
    }

    /// Adds one at the end.
    pub(crate) fn push(&self, value: T) -> &T {
        let next = OnceLock::new();
        let mut node = Box::new(Node { value, next });
        let mut place = &self.first;
        loop {
            match place.set(node) {
                Ok(()) => return &place.get().expect("it was set just now").value,
                // Another thread was quicker, or the end is further on.
                Err(back) => {
                    node = back;
                    place = &place.get().expect("it is taken").next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_stays_where_it_is() {
        let list = Growing::default();
        let first = list.push(1);
        let second = list.push(2);
        assert_eq!((*first, *second), (1, 2));
        assert_eq!(list.iter().copied().collect::<Vec<i32>>(), [1, 2]);
    }
}
