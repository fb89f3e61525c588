-- A resource is a directory with everything in it, or one file.
ALTER TABLE resource ADD COLUMN shape TEXT NOT NULL DEFAULT 'tree';
