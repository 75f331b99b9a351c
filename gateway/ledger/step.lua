-- One step of one gateway: what it holds, gives back, waits for and wants; and what it is told of the others.
-- gateway/ledger/step.py says what each field means. All times are milliseconds of this server's clock.
-- KEYS: 1 the epoch; 2 what each gateway said last; 3 why operators drained engines; 4.. who holds slots of each
-- engine (owner:number, expiry).

local step = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local KEEP = 604800000 -- a week, so that a pool that is gone leaves nothing behind

-- The gateways that live, and the word of this one.
local mine, others, said = nil, {}, redis.call('HGETALL', KEYS[2])
for i = 1, #said, 2 do
  local word = cjson.decode(said[i + 1])
  if word.expires <= now then
    redis.call('HDEL', KEYS[2], said[i])
  elseif said[i] == step.owner then
    mine = word
  else
    word.owner = said[i]
    table.insert(others, word)
  end
end

-- A step that was given up and arrives late, behind another one, does nothing.
if mine and mine.number >= step.number then return cjson.encode({stale = true}) end

-- Without an epoch nobody knows what runs: no slot is given until all who live have said what they hold.
local epoch = redis.call('HMGET', KEYS[1], 'id', 'thaws', 'returned', 'regroup_until', 'forgotten')
if not epoch[1] then
  epoch = {step.nonce, now + step.freeze}
  redis.call('HSET', KEYS[1], 'id', epoch[1], 'thaws', string.format('%d', epoch[2]))
end
-- Who is not known here, or said more than is known here, says it all again.
if not step.full and (step.epoch ~= epoch[1] or not mine or mine.number < step.heard) then
  return cjson.encode({again = true})
end
local thaws = tonumber(epoch[2])

-- When this gateway was told something last, for certain: an answer may be lost on its way.
local heard = nil
if mine then heard = mine.number == step.heard and mine.at or mine.heard end

-- Who comes back has decided alone, and so may have others who are not back yet: what they run is not known.
-- No slot is given until all who are known here have been told something since; until time is over where
-- nobody need be known here any more.
local returned, regroup_until, forgotten = tonumber(epoch[3] or 0), tonumber(epoch[4] or 0), epoch[5] == '1'
if returned > now then returned, regroup_until = 0, 0 end -- the clock was put back
local function missing(time)
  local count = 0
  for _, word in ipairs(others) do
    if (word.heard or 0) <= time then count = count + 1 end
  end
  return count
end
if step.lost then
  local lost = now - (step.clock - step.lost)
  local nobody_heard = not heard and missing(lost) == #others
  if returned <= lost and (nobody_heard or missing(lost) > 0) then
    forgotten = nobody_heard or forgotten and now < regroup_until
    returned, regroup_until = now, now + step.freeze
    redis.call('HSET', KEYS[1], 'returned', string.format('%d', returned),
      'regroup_until', string.format('%d', regroup_until), 'forgotten', forgotten and '1' or '0')
  end
end
if forgotten or missing(returned) > 0 then thaws = math.max(thaws, regroup_until) end
local frozen = math.max(0, thaws - now)

local function member(number) return step.owner .. ':' .. number end

local function hold(engine, number)
  local key = KEYS[3 + engine]
  local new = redis.call('ZADD', key, string.format('%d', now + step.lease), member(number))
  redis.call('PEXPIRE', key, 10 * step.lease)
  return new
end

-- When a call came that waits for this engine, by this server's clock. What was said first counts, so that two
-- who came at the same time do not pass each other for ever.
local function since(engine, came)
  local told = mine and mine.engines[step.engines[engine].url]
  if told and told.came == came then return told.since end
  return now - (step.clock - came)
end

-- Others whose oldest call has waited for this engine longer, and said so lately.
local function before(engine, since)
  local count = 0
  for _, word in ipairs(others) do
    local other = word.engines[step.engines[engine].url]
    if other and other.since and word.at > now - step.claim then
      if other.since < since or (other.since == since and word.owner < step.owner) then count = count + 1 end
    end
  end
  return count
end

-- The slots that the engine has, as the least of all who know it say.
local function slots(engine, least)
  for _, word in ipairs(others) do
    local other = word.engines[step.engines[engine].url]
    if other and other.slots > 0 and (least == 0 or other.slots < least) then least = other.slots end
  end
  return least
end

-- And those that others have tried there, where nobody knows.
local function tried(engine)
  local most = 0
  for _, word in ipairs(others) do
    local other = word.engines[step.engines[engine].url]
    if other and -other.slots > most then most = -other.slots end
  end
  return most
end

local freed = {}
for engine in ipairs(step.engines) do
  redis.call('ZREMRANGEBYSCORE', KEYS[3 + engine], '-inf', string.format('%d', now))
end
for _, one in ipairs(step.freed) do
  if redis.call('ZREM', KEYS[3 + one[1]], member(one[2])) == 1 then freed[one[1]] = true end
end

local word = {number = step.number, at = now, heard = heard, expires = now + step.lease, engines = {}}
for i, engine in ipairs(step.engines) do
  word.engines[engine.url] = {
    slots = engine.slots, ready = engine.ready, came = engine.came, since = engine.came and since(i, engine.came)
  }
end
if step.bye then
  redis.call('HDEL', KEYS[2], step.owner)
else
  redis.call('HSET', KEYS[2], step.owner, cjson.encode(word))
end
local had = {} -- 1 for each of those held that stood here, else 0
if step.full then
  for i, one in ipairs(step.held) do had[i] = 1 - hold(one[1], one[2]) end
  if now < tonumber(epoch[2]) then -- who knows of a drain says so while the epoch is new
    for _, one in ipairs(step.known) do redis.call('HSETNX', KEYS[3], step.engines[one[1]].url, one[2]) end
  end
  redis.call('PEXPIRE', KEYS[3], KEEP)
  redis.call('PEXPIRE', KEYS[1], KEEP)
  redis.call('PEXPIRE', KEYS[2], KEEP)
end

for _, one in ipairs(step.drains) do
  local url = step.engines[one[1]].url
  if one[2] then redis.call('HSET', KEYS[3], url, one[2]) else redis.call('HDEL', KEYS[3], url) end
end

local given = {}
for i, one in ipairs(step.wanted) do
  local engine, number, first, least = one[1], one[2], since(one[1], one[3]), one[4]
  local own = word.engines[step.engines[engine].url].since
  if own and own < first then first = own end
  local key = KEYS[3 + engine]
  given[i] = 0
  if redis.call('ZSCORE', key, member(number)) then
    given[i] = 1
  elseif frozen == 0 and redis.call('ZCARD', key) + before(engine, first) < slots(engine, least) then
    hold(engine, number)
    given[i] = 1
  end
end

local engines = {}
for i, engine in ipairs(step.engines) do
  local gateways, rank, ready = 1, 0, 0
  for _, other in ipairs(others) do
    local there = other.engines[engine.url]
    if there then
      gateways = gateways + 1
      if other.owner < step.owner then rank = rank + 1 end
      if there.ready then ready = 1 end
    end
  end
  local ahead = before(i, word.engines[engine.url].since or math.huge)
  local why = redis.call('HGET', KEYS[3], engine.url)
  engines[i] = {redis.call('ZCARD', KEYS[3 + i]), slots(i, 0), tried(i), ahead, gateways, rank, ready, why}
  -- A hint to those who wait; their polls are the guarantee.
  if freed[i] and before(i, math.huge) > 0 then redis.call('PUBLISH', step.channel, '') end
end
return cjson.encode({epoch = epoch[1], frozen = frozen, had = had, given = given, engines = engines})
