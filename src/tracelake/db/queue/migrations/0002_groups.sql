-- Whose a message is. Receivers share a queue fairly over groups, so messages that are due are found group by group: the
-- index leads from one group to the next with one probe, however many messages a group has.
ALTER TABLE messages ADD COLUMN group_key text COLLATE "C" NOT NULL DEFAULT '' CHECK (length(group_key) <= 128);
ALTER TABLE dead_letters ADD COLUMN group_key text COLLATE "C" NOT NULL DEFAULT '' CHECK (length(group_key) <= 128);

DROP INDEX messages_due;
CREATE INDEX messages_due ON messages (queue, group_key, visible_at);

-- Groups that are not here have weight 1.
CREATE TABLE group_weights (
    group_key text COLLATE "C" PRIMARY KEY CHECK (length(group_key) <= 128),
    weight    double precision NOT NULL CHECK (weight > 0 AND weight <= 1000)
);
