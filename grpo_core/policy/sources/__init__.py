"""Where models come from: bundled with a package, made from nothing, a folder or the hub; and the cache of those made here."""
