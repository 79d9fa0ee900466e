//! What holds for every input: checked on random namespaces, objects and bytes, through the public
//! API of the rules.

#[cfg(test)]
mod index;
#[cfg(test)]
mod patches;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod robust;
#[cfg(test)]
mod verdicts;
#[cfg(test)]
mod world;
