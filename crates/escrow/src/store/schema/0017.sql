-- What the engine moved itself is remembered beside the state since the directory strategies keep it.
DROP TABLE moved;
