"""Caching a data set whose trainer numbers records by a table: a run of shards for each bucket, and its index at the
end."""
